"""A loss mask beside the corpus: what is counted, and the same losses on every layout."""

from pathlib import Path

import numpy as np
import pytest

from meshwright.data.indexed import IndexedDataset
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loss_mask import IGNORED, MaskWriter
from ranks import run_ranks
from trainer_runs import SEQ_LENGTH, VOCAB, by_step, global_samples, metrics, ranks_of, train, write_config


def write_mask(prefix: Path) -> np.ndarray:
    """Give a corpus a mask, bool [tokens]: most of it unsupervised, one of its documents wholly."""
    data = IndexedDataset(prefix)
    documents = [data.sequence(number).astype(np.int64) for number in range(len(data))]
    del data
    rng = np.random.default_rng(3)
    masks = [rng.random(len(tokens)) < (number != 2) * 0.3 for number, tokens in enumerate(documents)]
    with IndexedWriter(prefix, vocab_size=VOCAB, beside=MaskWriter) as writer:
        for tokens, mask in zip(documents, masks, strict=True):
            writer.add_document(tokens, np.where(mask, tokens, IGNORED))
    return np.concatenate(masks)


@pytest.mark.parametrize(("other", "isolated"), [("dp2pp2_zero1", False), ("dp2tp2_zero2_seq", True)])
def test_masked_tokens_are_not_trained_on_in_any_layout(tmp_path: Path, other: str, isolated: bool) -> None:
    write_config(tmp_path)
    train_mask, held_out_mask = write_mask(tmp_path / "train"), write_mask(tmp_path / "held_out")
    losses = {}
    for layout in ("one", other):
        config = write_config(
            tmp_path,
            layout,
            output_dir=str(tmp_path / layout),
            dataset={
                "eval_paths": [str(tmp_path / "held_out")],
                "isolate_documents": isolated,
                "align_documents": isolated,
            },
        )
        samples = global_samples(run_ranks(train, ranks_of(layout), config))
        steps = by_step(tmp_path / layout, "train/loss", "train/grad_norm", "train/supervised_tokens")
        losses[layout] = [step[:2] for step in steps.values()]
        if not isolated:
            counts = [sum(train_mask[i * SEQ_LENGTH + 1 :][:SEQ_LENGTH].sum() for i in step) for step in samples]
            assert [step[2] for step in steps.values()] == np.cumsum(counts).tolist()
            assert metrics(tmp_path / layout)[-1]["val/tokens"] == held_out_mask[1:].sum()
        losses[layout].append((metrics(tmp_path / layout)[-1]["val/loss"],))
    for step, expected in zip(losses[other], losses["one"], strict=True):
        assert step == pytest.approx(expected, abs=1e-5, rel=1e-4)


def test_an_evaluation_without_a_supervised_token_has_no_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path)
    held_out = IndexedDataset(tmp_path / "held_out").tokens.astype(np.int64)
    with IndexedWriter(tmp_path / "held_out", vocab_size=VOCAB, beside=MaskWriter) as writer:
        writer.add_document(held_out, np.append(np.full(len(held_out) - 1, IGNORED), held_out[-1]))
    dataset = {"eval_paths": [str(tmp_path / "held_out")]}
    config = write_config(tmp_path, dataset=dataset, train={"train_steps": 2, "eval_batches": 1})
    run_ranks(train, 1, config)
    (line,) = [line for line in metrics(tmp_path / "out") if "val/tokens" in line]
    assert line == {"step": 2, "val/tokens": 0}
    assert "step 2/2  evaluation: no supervised tokens" in capsys.readouterr().out
