"""Held-out evaluation: when bits per byte are told."""

from pathlib import Path

import numpy as np

from meshwright.data.dataset import TokenDataset
from meshwright.data.own_labels import LabelWriter
from meshwright.data.preparation.prepare import prepare
from meshwright.model.decoder import Decoder
from meshwright.model.init import init_weights
from meshwright.spec.model import ModelSpec
from meshwright.train.evaluate import evaluate

SPEC = ModelSpec(
    num_layers=1,
    hidden_size=16,
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=16,
    vocab_size=257,
)


def test_labels_that_are_other_ids_have_no_bits_per_byte(tmp_path: Path) -> None:
    """The bytes of the text are not what they foretell."""
    (tmp_path / "a.txt").write_text("a text and its bytes\n")
    prepare([tmp_path / "a.txt"], tmp_path / "c", train_vocab_size=257, eval_fraction=0)
    model = Decoder(SPEC, seq_length=8)
    init_weights(model, SPEC, 0)

    def bits() -> float | None:
        data = TokenDataset([tmp_path / "c"], 8, vocab_size=257, pad_last=True)
        return evaluate(model, data, batch_size=2).bits_per_byte

    assert bits() is not None
    tokens = TokenDataset([tmp_path / "c"], 8, pad_last=True).num_tokens
    beside = LabelWriter(tmp_path / "c")
    beside.add(np.full(tokens, 7))
    beside.close()
    beside.publish()
    assert bits() is None
