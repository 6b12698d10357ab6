"""Memory of a run against its plan: predicted and measured peaks, and the report of a rank that dies of memory."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from meshwright.checkpoint.errors import PeerLost
from meshwright.config.run import Run
from meshwright.diagnose.expected import Expected, cluster_of, expected, within
from meshwright.diagnose.oom_error import InStep, building, in_step, memory_error, ranks_short_of_memory, sizes_told
from meshwright.diagnose.oom_report import Part, Place, Shortage, amount, parts_of, planned_moment, report
from meshwright.launch.failure import noted_position, set_position
from meshwright.parallel.devices import GIB, DeviceKind, device_name
from meshwright.parallel.precision import formats
from meshwright.parallel.tensor import local
from meshwright.plan.memory.report import Category
from meshwright.spec.cluster import DeviceFamily
from meshwright.train.memory import RunMemory
from meshwright.train.step import TrainState

IN_STEP = "forward and backward"
"""Phase that the trainer notes for a whole step; an error's call stack tells which part of it."""
GENERATIONS: Mapping[int, DeviceFamily] = {7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell"}
"""Families of CUDA devices by the first number of their compute capability; the ends stand for those beyond."""
ADA = (8, 9)


def watched_memory(run: Run, kind: DeviceKind, device: torch.device) -> RunMemory:
    """The memory of this rank, as ``monitor.track_memory`` asks for it."""
    if not run.config.monitor.track_memory:
        return WatchedMemory(run, kind, device)
    from meshwright.diagnose.tracked_memory import TrackedMemory

    return TrackedMemory(run, kind, device)


class WatchedMemory(RunMemory):
    """What the device's allocator counts, held against the plan.

    Attributes:
        comparable: live tensors are counted, which the plan predicts; of a CPU only the process is known.
        expected: what the planner says of this run on these devices.
    """

    comparable: bool

    def __init__(self, run: Run, kind: DeviceKind, device: torch.device) -> None:
        super().__init__(run, kind, device)
        self.comparable = kind.memory_stats
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.expected = self._expected()
        self.state: TrainState | None = None
        self._steps = 0

    def _expected(self) -> Expected:
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))
        cluster = cluster_of(
            device_name(self.kind, self.device),
            device_family(self.kind, self.device),
            self.use().total / (1 if self.kind.memory_stats else neighbours),
            self.world_size,
            neighbours,
        )
        dtype: Any = str(formats(self.run.train.precision, self.kind).compute).removeprefix("torch.")
        return expected(self.run, cluster, self.rank, dtype)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Add a report to an error that is about memory, and let that one out where another was raised from it.

        Raises:
            PeerLost: a save failed for the memory of another rank, which tells its own story.
        """
        try:
            yield
        except Exception as error:
            cause = self._explain(error)
            if cause is error:
                raise
            # A pipeline stage says in an error of its own that it failed; the reason goes first.
            error.__cause__ = None
            raise cause from error

    def follow(self, state: TrainState) -> None:
        """Keep the state: what it holds is known by name."""
        self.state = state

    def metrics(self) -> dict[str, float]:
        """The allocator's figures, and the prediction beside them."""
        measured = super().metrics()
        if not self.comparable:
            return measured
        predicted = self.expected.stage.allocated
        return measured | {
            "memory/predicted_gib": predicted / GIB,
            "memory/predicted_error_pct": error_pct(predicted, measured["memory/peak_gib"] * GIB),
        }

    def step_done(self, *, last: bool) -> str | None:
        """After the second step, which has allocated all that later ones need, or after an only one: the comparison."""
        self._steps += 1
        due = self._steps == 2 or (last and self._steps == 1)
        if not (due and self.comparable):
            return None
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, (self.expected.stage.allocated, self.use().peak_allocated))
        return comparison(everyone)

    def _explain(self, error: Exception) -> BaseException:
        """The error to let out: the one about memory with its report, or ``error`` where there is none."""
        cause, short = memory_error(error), ranks_short_of_memory(error)
        if short and self.rank not in short:
            raise PeerLost(str(error)) from error
        if cause is None and not short:
            return error
        told = cause or error
        place = self.place(error)
        set_position(place.step, place.phase)
        shortage = self.shortage(told, place.phase)
        told.add_note(report(place, shortage, within(self.expected, shortage.available)))
        return told

    def place(self, error: BaseException) -> Place:
        """Where this rank stood when the error came up."""
        step, phase = noted_position()
        found = self.in_step(error) if phase == IN_STEP else None
        return Place(
            rank=self.rank,
            world_size=self.world_size,
            step=step,
            phase=found.phase if found else phase or "start",
            micro_batch=found.micro_batch if found else None,
            micro_batches=self.run.train.batch.micro_batch_num,
            module=found.module if found else building(error) if self.state is None else "",
            operator=found.operator if found else "",
        )

    def in_step(self, error: BaseException) -> InStep | None:
        """Which part of the step the error came from, as far as its call stack tells."""
        return None if self.state is None else in_step(error, self.state.model)

    def shortage(self, error: BaseException, phase: str) -> Shortage:
        """The allocation that failed: as torch's message tells it, else as the allocator stands now."""
        use = self.use()
        asked, allocated, unused = sizes_told(error)
        allocated = use.allocated if allocated is None else allocated
        reserved = use.reserved if unused is None else allocated + unused
        return Shortage(
            requested=asked,
            allocated=allocated,
            reserved=reserved,
            total=use.total,
            available=min(use.total, use.reserved + use.free),
            parts=self.parts(allocated, phase),
            moment=planned_moment(self.expected.stage, phase).name,
        )

    def parts(self, allocated: int, phase: str) -> tuple[Part, ...]:
        """What the state holds by name; gathered weights, activations and temporaries are the rest."""
        moment = planned_moment(self.expected.stage, phase)
        if self.state is None:
            return (Part(name="built so far", bytes=allocated, planned=moment.total),)
        known = state_bytes(self.state)
        return parts_of(known, moment, rest=max(0.0, allocated - sum(known.values())))


def device_family(kind: DeviceKind, device: torch.device) -> DeviceFamily:
    """Generation of a device, which stands in for one that the catalogue does not know."""
    if kind.name == "cuda" and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        return "ada" if capability == ADA else GENERATIONS[min(max(capability[0], min(GENERATIONS)), max(GENERATIONS))]
    families: Mapping[str, DeviceFamily] = {"cuda": "cdna3", "npu": "ascend"}
    return families.get(kind.name, "cpu")


def state_bytes(state: TrainState) -> dict[Category, float]:
    """Bytes of this rank's own part of the weights, gradients and optimizer states."""
    weights = state.optimizer.parameters.values()
    moments = (*state.optimizer.exp_avg.values(), *state.optimizer.exp_avg_sq.values())
    return {
        "weights": sum(local(weight.detach()).nbytes for weight in weights),
        "gradients": sum(local(weight.grad).nbytes for weight in weights if weight.grad is not None),
        "optimizer": sum(local(moment).nbytes for moment in moments),
    }


def error_pct(predicted: float, measured: float) -> float:
    """(predicted - measured) / measured, per cent."""
    return 100 * (predicted / measured - 1)


def comparison(everyone: list[tuple[float, float]]) -> str:
    """``memory: predicted 12.34 GiB, measured 12.30 GiB (+0.3 %)`` from (predicted, measured) bytes of each rank."""
    predicted, measured = everyone[0]
    line = f"memory: predicted {amount(predicted)}, measured {amount(measured)} ({error_pct(*everyone[0]):+.1f} %)"
    if len(everyone) == 1:
        return line
    errors = [error_pct(*rank) for rank in everyone]
    return f"{line} on rank 0; {min(errors):+.1f} to {max(errors):+.1f} % over all ranks"
