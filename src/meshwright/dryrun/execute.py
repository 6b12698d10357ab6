"""Steps of one rank, executed and written down.

State and step are those of `meshwright.train`; what is exchanged is the world they run in (`world`), the batch, and
which kernels a device would choose (`target`).
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.data.loader import Batch
from meshwright.dryrun.garbage import garbage_kept
from meshwright.dryrun.position import Position
from meshwright.dryrun.tape import Tape
from meshwright.dryrun.target import Target
from meshwright.dryrun.tracker import MemoryTracker
from meshwright.dryrun.traffic import Traffic, TrafficObserver
from meshwright.dryrun.world import fake_world
from meshwright.parallel.devices import KINDS
from meshwright.parallel.precision import formats
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec
from meshwright.train.build import build_state
from meshwright.train.step import TrainState, train_step

LEARNING_RATE = 1e-3
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One rank's run as it was written down.

    Attributes:
        traffic: of the last step.
        seconds: that the run took here.
    """

    tape: Tape
    traffic: Traffic
    seconds: float


def execute(
    spec: ModelSpec, layout: Layout, train: TrainSpec, rank: int, *, on: Target, steps: int = 2, real: bool = False
) -> Execution:
    """Build one rank's state and make some optimizer steps.

    Args:
        steps: the last is the one to report: the first also makes what is made once.
        real: allocate for real (CPU only); the values are meaningless, the sizes are the same.
    """
    with garbage_kept():
        return _followed(spec, layout, train, rank, on=on, steps=steps, real=real)


def _followed(
    spec: ModelSpec, layout: Layout, train: TrainSpec, rank: int, *, on: Target, steps: int, real: bool
) -> Execution:
    started = time.perf_counter()
    observer = TrafficObserver()
    with fake_world(rank, layout.world_size, real_tensors=real), on.kernels():
        position = Position()
        tracker = MemoryTracker(position, rounding=on.rounding, workspaces=on.workspaces, observer=observer)
        with tracker.watching():
            state, batch = rank_state(spec, layout, train), rank_batch(train)
            observe(state, position, tracker)
            tracker.tag(batch.tensors, "inputs")
            for size in on.held:
                tracker.hold(size, "matrix product workspace")
            for _ in range(steps):
                gc.collect()
                tracker.tape.starts.append(len(tracker.tape.events))
                position.begin_step()
                observer.clear()
                train_step(state, batch, LEARNING_RATE)
    return Execution(tape=tracker.tape, traffic=observer.traffic(), seconds=time.perf_counter() - started)


def rank_state(spec: ModelSpec, layout: Layout, train: TrainSpec) -> TrainState:
    """The state that `train_step` takes, of this rank of the current world."""
    kind = KINDS["cpu"]
    chosen = formats(train.precision, kind)
    return build_state(spec, layout, train, kind=kind, device=CPU, chosen=chosen, initial=_zeros)


def _zeros(_name: str, shape: torch.Size, start: int, stop: int) -> Tensor:
    """Initial weights, not drawn: only their sizes matter."""
    return torch.zeros(stop - start, *shape[1:])


def observe(state: TrainState, position: Position, tracker: MemoryTracker) -> None:
    """Say what the storages of a state are, and where `train_step` passes from one phase to the next."""
    position.follow(state.model)
    optimizer: Any = state.optimizer
    executor: Any = state.executor
    for name, parameter in state.model.named_parameters():
        module = name.rpartition(".")[0]
        tracker.tag(parameter, "weights", module)
        tracker.tag((optimizer.exp_avg[name], optimizer.exp_avg_sq[name]), "optimizer", module)
    executor.forward_backward = position.within("forward", "gradients", executor.forward_backward)
    optimizer.step = position.within("optimizer", "gradients", _naming_gradients(state, tracker, optimizer.step))


def _naming_gradients(state: TrainState, tracker: MemoryTracker, update: Callable[..., Any]) -> Callable[..., Any]:
    """``update``, before which the gradients that it finds are told: by what operators they came differs with ZeRO."""

    def updated(*args: Any, **kwargs: Any) -> Any:
        tracker.tag([parameter.grad for parameter in state.model.parameters()], "gradients")
        return update(*args, **kwargs)

    return updated


def rank_batch(train: TrainSpec) -> Batch:
    """A batch of the sizes of one data rank's."""
    shape = (train.batch.micro_batch_size * train.batch.micro_batch_num, train.seq_length)
    return Batch(*(torch.zeros(shape, dtype=torch.int64) for _ in range(2 + train.isolate_documents)))
