"""What a run tells of its memory while it goes on.

`RunMemory` counts what the device's allocator counts. What a run was expected to need, and the report of one that dies
of memory, need the planner and stand above this package: `meshwright.diagnose.run_memory` gives them to `worker.main`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from meshwright.config.run import Run
from meshwright.data.loader import Batch
from meshwright.parallel.devices import GIB, DeviceKind, MemoryUse, memory_use
from meshwright.train.step import TrainState


class RunMemory:
    """Memory of one rank of a run."""

    def __init__(self, run: Run, kind: DeviceKind, device: torch.device) -> None:
        self.run, self.kind, self.device = run, kind, device

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around everything that the run does, from before its state is built."""
        yield

    def follow(self, state: TrainState) -> None:
        """The state has been built."""

    def begin_step(self, batch: Batch) -> None:
        """A step on ``batch`` begins."""

    def use(self) -> MemoryUse:
        """This rank's use of its device, bytes."""
        return memory_use(self.kind, self.device)

    def metrics(self) -> dict[str, float]:
        """Metrics of this rank; called between two steps."""
        use = self.use()
        return {
            "memory/peak_gib": use.peak_allocated / GIB,
            "memory/after_step_gib": use.allocated / GIB,
            "memory/peak_reserved_gib": use.peak_reserved / GIB,
            "memory/peak_pct": 100 * use.peak_reserved / use.total,
        }

    def step_done(self, *, last: bool) -> str | None:
        """A step has been settled on all ranks; what there is to say about memory, on every rank the same."""
        return None


MakeMemory = Callable[[Run, DeviceKind, torch.device], RunMemory]
