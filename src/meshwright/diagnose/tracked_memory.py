"""Memory of a run on a CPU, where no allocator counts: every tensor followed by the dry run's tracker."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from meshwright.config.run import Run
from meshwright.data.loader import Batch
from meshwright.diagnose.oom_error import InStep
from meshwright.diagnose.oom_report import Part, Shortage, amount, parts_of, planned_moment
from meshwright.diagnose.run_memory import WatchedMemory
from meshwright.dryrun.analysis import Category, category
from meshwright.dryrun.execute import observe
from meshwright.dryrun.position import Position
from meshwright.dryrun.tape import Event, Moment, Record, Tape
from meshwright.dryrun.target import target
from meshwright.dryrun.tracker import MemoryTracker, Workspace
from meshwright.parallel.devices import GIB, DeviceKind, MemoryUse
from meshwright.plan.memory.report import Category as Planned
from meshwright.train.step import TrainState

PLANNED: Mapping[Category, Planned] = {
    "weights": "weights",
    "gathered weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "saved activations": "activations",
    "recomputed": "activations",
    "inputs and tables": "activations",
    "logits and loss": "logits",
    "communication": "communication",
    "temporaries": "temporaries",
    "workspaces": "temporaries",
}
"""Where the plan counts what the tracker tells apart."""
_c10d, _functional = torch.ops.c10d, torch.ops._c10d_functional
GLOO_COPIES: Mapping[Any, Workspace] = {
    _c10d._allgather_base_.default: lambda args, _result: args[0].nbytes,
    _c10d._reduce_scatter_base_.default: lambda args, _result: args[1].nbytes,
    _functional.all_gather_into_tensor.default: lambda _args, result: result.nbytes,
    _functional.reduce_scatter_tensor.default: lambda args, _result: args[0].nbytes,
}
"""gloo gathers into a copy of the result and reduces in a copy of its input: torch/csrc/distributed/c10d,
ProcessGroupGloo.cpp, _allgather_base and _reduce_scatter_base."""


class OutOfMemory(MemoryError):
    """An allocation that would pass ``monitor.memory_limit_gib``; bytes.

    Attributes:
        sizes: of each storage that was alive.
    """

    def __init__(self, requested: int, limit: int, moment: Moment, sizes: Mapping[Record, int]) -> None:
        self.requested, self.allocated, self.limit = requested, sum(sizes.values()), limit
        self.moment, self.sizes = moment, sizes
        super().__init__(
            f"tried to allocate {amount(requested)} with {amount(self.allocated)} allocated:"
            f" more than monitor.memory_limit_gib ({amount(limit)})"
        )


class LiveBytes(list[Event]):
    """Takes the events of a tape and keeps only what is alive, so that runs of any length can be followed.

    Attributes:
        limit: bytes that may live at once; None is no limit.
        bytes / peak: alive now, and at most so far.
        sizes: of each storage that is alive.
        refused: the allocation that passed the limit.
    """

    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self.limit, self.bytes, self.peak = limit, 0, 0
        self.sizes: dict[Record, int] = {}
        self.refused: OutOfMemory | None = None

    def append(self, event: Event) -> None:
        """Take one event. Raises OutOfMemory where it would pass the limit."""
        change, record, moment = event
        if change > 0 and self.limit is not None and self.bytes + change > self.limit:
            self.refused = OutOfMemory(change, self.limit, moment, dict(self.sizes))
            raise self.refused
        self.bytes += change
        self.peak = max(self.peak, self.bytes)
        size = record.size + change
        if size:
            self.sizes[record] = size
        else:
            self.sizes.pop(record, None)


class TrackedMemory(WatchedMemory):
    """The bytes of live tensors, to the byte, with a limit where one is set.

    Tensors that other threads make, as ``checkpoint.async_save`` does, are not seen.
    """

    def __init__(self, run: Run, kind: DeviceKind, device: torch.device) -> None:
        limit = run.config.monitor.memory_limit_gib
        self.live = LiveBytes(None if limit is None else int(limit * GIB))
        super().__init__(run, kind, device)
        self.comparable = True
        self._position = Position()
        self._tracker = MemoryTracker(self._position, workspaces={**target("cpu").workspaces, **GLOO_COPIES})
        self._tracker.tape = Tape(events=self.live)
        self._begun = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Track everything inside; see `WatchedMemory.watching`."""
        with super().watching(), self._tracker.watching():
            yield

    def follow(self, state: TrainState) -> None:
        """Tell the tensors of the state by name, and its phases by its calls."""
        super().follow(state)
        observe(state, self._position, self._tracker)

    def begin_step(self, batch: Batch) -> None:
        """Memory is compared with the plan from the first step on: building a state may take more for a moment."""
        if not self._begun:
            self._begun, self.live.peak = True, self.live.bytes
        self._position.begin_step()
        self._tracker.tag(batch.tensors, "inputs")

    def use(self) -> MemoryUse:
        """Live tensors as tracked; what is reserved, free and there is the process's and the machine's."""
        return replace(super().use(), allocated=self.live.bytes, peak_allocated=self.live.peak)

    def in_step(self, error: BaseException) -> InStep | None:
        """Which part of the step the allocation that passed the limit was made in; exact also in backward."""
        if self.live.refused is None:
            return super().in_step(error)
        moment = self.live.refused.moment
        phase = "optimizer step" if moment.phase == "optimizer" else moment.phase
        return InStep(phase, moment.micro_batch + 1 or None, moment.module, moment.operator)

    def shortage(self, error: BaseException, phase: str) -> Shortage:
        """The allocation that passed the limit."""
        refused = self.live.refused
        if refused is None:
            return super().shortage(error, phase)
        return Shortage(
            requested=refused.requested,
            allocated=refused.allocated,
            reserved=refused.allocated,
            total=refused.limit,
            available=refused.limit,
            parts=self.parts(refused.allocated, phase),
            moment=planned_moment(self.expected.stage, phase).name,
        )

    def parts(self, allocated: int, phase: str) -> tuple[Part, ...]:
        """Live bytes by category, as the tracker tells them apart."""
        if self.state is None:
            return super().parts(allocated, phase)
        # In a first step gathered weights have not been freed and filled again, by which the tracker tells them.
        self._tracker.tag(tuple(self.state.model.parameters()), "weights")
        step = self._position.now("").step
        alive = self.live.refused.sizes if self.live.refused else self.live.sizes
        measured: Counter[Planned] = Counter()
        for record, size in alive.items():
            measured[PLANNED[category(record, step)]] += size
        return parts_of(measured, planned_moment(self.expected.stage, phase))
