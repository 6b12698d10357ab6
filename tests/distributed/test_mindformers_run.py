"""A run of MindFormers' own Trainer, gone on with here from its saved weights: the same losses and final weights.

Two conventions of MindFormers are not ours and are supplied by this test: tokens equal to pad (0) are no attention
keys (its mask adds -10000 to their scores), and positions whose input is pad are not supervised.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ranks import run_ranks

torch = pytest.importorskip("torch")

from meshwright.checkpoint.huggingface import HuggingFaceWeights  # noqa: E402
from meshwright.checkpoint.safetensors_file import SafetensorsFile  # noqa: E402
from meshwright.cli import main  # noqa: E402
from meshwright.data.loader import Batch  # noqa: E402
from meshwright.model import attention  # noqa: E402
from meshwright.parallel.devices import KINDS  # noqa: E402
from meshwright.parallel.precision import formats  # noqa: E402
from meshwright.spec.huggingface import read_model_spec  # noqa: E402
from meshwright.spec.layout import Layout  # noqa: E402
from meshwright.spec.training import Batch as BatchSpec  # noqa: E402
from meshwright.spec.training import OptimizerSpec, Precision, TrainSpec  # noqa: E402
from meshwright.train.build import build_state  # noqa: E402
from meshwright.train.step import train_step  # noqa: E402
from parity import whole  # noqa: E402

RUN = Path(__file__).parents[1] / "data" / "mindspore" / "llama_tiny"
PAD, BATCH, LEARNING_RATE = 0, 2, 1e-3
LOSS_TOLERANCE, NORM_TOLERANCE, WEIGHT_TOLERANCE = 1e-5, 1e-5, 1e-5
LAYOUTS = {"one": Layout(), "tp2": Layout(model_parallel=2), "zero3": Layout(data_parallel=2, zero_stage=3)}


def batches() -> "list[Batch]":
    """Two epochs over the rows in order, two rows a step."""
    ids = torch.tensor(json.loads((RUN / "rows.json").read_text()))
    tokens, labels = ids[:, :-1], ids[:, 1:].clone()
    labels[tokens == PAD] = -100
    pairs = list(zip(tokens.split(BATCH), labels.split(BATCH), strict=True))
    return [Batch(tokens=one, labels=other) for one, other in pairs * 2]


def attend_without_pads(tokens: "torch.Tensor") -> None:
    """Make attention leave pad tokens out as keys, the way MindFormers' mask does."""
    length = tokens.shape[1]
    hidden = torch.ones(length, length).triu(1)[None] + (tokens == PAD).float()[:, None]
    mask = (hidden.clamp(max=1) * -10000.0)[:, None]

    def attend(self: Any, q: Any, k: Any, v: Any, _bias: None) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    attention.Attention._attend = attend


def replay(folder: Path, layout: str) -> "tuple[list[float], list[float], dict[str, torch.Tensor]]":
    """Losses, gradient norms and final weights of the run on this rank."""
    ways = LAYOUTS[layout].data_parallel
    train = TrainSpec(
        seq_length=16,
        batch=BatchSpec(micro_batch_size=BATCH // ways, micro_batch_num=1, global_batch_size=BATCH),
        grad_clip=1.0,
        precision=Precision(amp_level="O0"),
        optimizer=OptimizerSpec(learning_rate=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01),
    )
    kind, weights, spec = KINDS["cpu"], HuggingFaceWeights.open(folder), read_model_spec(folder)
    assert weights.problems(spec) == []
    state = build_state(
        spec,
        LAYOUTS[layout],
        train,
        kind=kind,
        device=torch.device("cpu"),
        chosen=formats(train.precision, kind),
        initial=weights.initial,
    )
    losses, norms = [], []
    for batch in batches():
        part = [t.chunk(ways)[state.mesh.zero_rank] for t in (batch.tokens, batch.labels)]
        attend_without_pads(part[0])
        outcome = train_step(state, Batch(tokens=part[0], labels=part[1]), LEARNING_RATE)
        losses.append(outcome.loss.item())
        norms.append(outcome.grad_norm.item())
    return losses, norms, {name: whole(p) for name, p in state.optimizer.parameters.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_losses_of_mindformers_go_on(layout: str, tmp_path: Path) -> None:
    source, config = RUN / "init_step0.safetensors", RUN / "config.yaml"
    assert main(["checkpoint", "convert", str(source), str(tmp_path / "start"), "--config", str(config)]) == 0
    assert main(["checkpoint", "convert", str(RUN / "new_format"), str(tmp_path / "end"), "--config", str(config)]) == 0
    steps = json.loads((RUN / "steps.json").read_text())
    losses, norms, weights = run_ranks(replay, LAYOUTS[layout].world_size, tmp_path / "start", layout)[0]
    loss = max(abs(here - step["loss"]) for here, step in zip(losses, steps, strict=True))
    norm = max(abs(here - step["global_norm"]) for here, step in zip(norms, steps, strict=True))
    end = HuggingFaceWeights.open(tmp_path / "end")
    expected = {name: end.initial(name, p.shape, 0, p.shape[0]) for name, p in weights.items()}
    weight = max((weights[name] - expected[name]).abs().max().item() for name in weights)
    print(f"{layout}: {len(steps)} steps, largest difference: loss {loss:.1e}, norm {norm:.1e}, weights {weight:.1e}")
    moved = SafetensorsFile.open(RUN / "init_step0.safetensors").read("lm_head.weight") - expected["head.weight"][:64]
    assert moved.abs().max() > 100 * WEIGHT_TOLERANCE
    assert loss <= LOSS_TOLERANCE
    assert norm <= NORM_TOLERANCE
    assert weight <= WEIGHT_TOLERANCE
