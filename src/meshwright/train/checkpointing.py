"""What a checkpoint of a run holds: between `TrainState` and the checkpoint store."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.config.run import Run, resolved_yaml
from meshwright.spec.layout import Layout
from meshwright.train.gradients import second_copy
from meshwright.train.step import TrainState

MODEL, OPTIMIZER, LOSS_SCALE = "model.", "optimizer.", "loss_scale."


@dataclass(kw_only=True)
class Counters:
    """Where a run stands.

    Attributes:
        step: optimizer steps made, skipped ones included; also the position in the data.
        tokens: tokens read.
        supervised_tokens: tokens that the loss counted.
        skipped: steps that changed no weight because of an overflow.
        unsupervised: steps whose global batch had no supervised token.
    """

    step: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    skipped: int = 0
    unsupervised: int = 0


def state_tensors(state: TrainState) -> dict[str, Tensor]:
    """Every tensor of the run that this rank has a part of, by its name in a checkpoint."""
    named = {MODEL + name: parameter.detach() for name, parameter in state.optimizer.parameters.items()}
    named |= {OPTIMIZER + name: tensor for name, tensor in state.optimizer.state_tensors().items()}
    return named | {LOSS_SCALE + name: tensor for name, tensor in state.loss_scale.state_tensors().items()}


def tensors_to_save(state: TrainState) -> dict[str, Tensor]:
    """`state_tensors` without the second copy of a tied weight: one name, one owner."""
    copies = [n for n in state.optimizer.parameters if second_copy(n, state.mesh, tied=state.tied)]
    return {n: t for n, t in state_tensors(state).items() if not n.endswith(tuple(copies))}


def random_state(device: torch.device) -> dict[str, Any]:
    """This rank's random number generators."""
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def restore_random_state(states: Mapping[str, Any], device: torch.device) -> None:
    """Set this rank's generators to a saved state."""
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"], device)


def identity(run: Run, data_fingerprint: str) -> dict[str, Any]:
    """What makes two runs the same run: a checkpoint of one continues the other only where all of it is equal."""
    return {
        **{f"model.{name}": value for name, value in asdict(run.model).items()},
        "seed": run.train.seed,
        "train.seq_length": run.train.seq_length,
        "train.global_batch_size": run.train.batch.global_batch_size,
        "dataset fingerprint": data_fingerprint,
        "dataset.isolate_documents": run.train.isolate_documents,
        "dataset.align_documents": run.config.dataset.align_documents,
    }


def identity_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """One line for each value that differs; tuples and lists count as equal, since JSON has only the latter."""
    names = dict.fromkeys([*saved, *current])
    return [
        f"{name}: checkpoint {saved.get(name)!r}, this run {_plain(current.get(name))!r}"
        for name in names
        if saved.get(name) != _plain(current.get(name))
    ]


def same_ranks(saved: Mapping[str, Any], layout: Layout) -> bool:
    """Whether a rank now holds what the rank of its number held when the run state ``saved`` was written.

    Random states go by rank number: with another mesh order or sequence split they would give ranks that share
    activations different dropout masks.
    """
    return saved.get("ranks") == {name: _plain(value) for name, value in asdict(layout).items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def run_state(run: Run, run_id: str, counters: Counters, data_fingerprint: str) -> dict[str, Any]:
    """What is the same on all ranks, as JSON."""
    return {
        "run_id": run_id,
        "counters": asdict(counters),
        "identity": identity(run, data_fingerprint),
        "layout": run.layout.short(),
        "ranks": asdict(run.layout),
        "config": resolved_yaml(run),
    }
