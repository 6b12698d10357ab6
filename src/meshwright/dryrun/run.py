"""A dry run: memory, traffic and FLOPs of the training step of one rank, without devices."""

import time
from dataclasses import dataclass

from meshwright.config.run import Run
from meshwright.dryrun.analysis import StepMemory
from meshwright.dryrun.execute import Execution
from meshwright.dryrun.fast import estimate
from meshwright.dryrun.found import run_whole
from meshwright.dryrun.reduced import Problem
from meshwright.dryrun.refuse import check
from meshwright.dryrun.target import TargetName, target
from meshwright.dryrun.traffic import Traffic
from meshwright.spec.cluster import DeviceFamily
from meshwright.spec.layout import Coordinates, Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec

Question = Run | tuple[ModelSpec, Layout, TrainSpec]


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """Bytes that the caching allocator holds at most, by the kind of its segments."""

    native: int
    expandable: int


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What one rank does in an optimizer step.

    Attributes:
        layers: of its stage.
        reserved: None where memory is not cached by an allocator.
        estimated: from small runs, extrapolated (see `fast`); reserved memory is then an estimate.
        seconds: that the dry run took.
        execution: the tape, for charts and snapshots; None where there is no single one.
    """

    rank: int
    at: Coordinates
    layers: tuple[int, ...]
    target: TargetName
    memory: StepMemory
    reserved: Reserved | None
    traffic: Traffic
    estimated: bool
    seconds: float
    execution: Execution | None = None

    @property
    def allocated(self) -> int:
        """Peak of live tensors, bytes."""
        return self.memory.peak.bytes

    @property
    def needed(self) -> int:
        """Bytes that the allocator takes of the device: reserved in native segments; without caching, allocated."""
        return self.allocated if self.reserved is None else self.reserved.native


def dry_run(
    run: Question,
    rank: int = 0,
    *,
    target_name: TargetName = "cuda",
    family: DeviceFamily = "hopper",
    steps: int = 2,
    fast: bool = False,
) -> DryRun:
    """Execute the training step of one rank on fake tensors.

    Args:
        target_name: ``cuda`` chooses CUDA's kernels, workspaces, rounding and allocator; ``cpu`` is exact for a CPU.
        family: of CUDA devices.
        steps: optimizer steps to make; the last is reported.
        fast: make one step only; a long one, of layers that are alike, is extrapolated from small runs.

    Raises:
        DryRunRefused: training would refuse the run, or a dry run cannot simulate it.
        ValueError: no such rank.
        RuntimeError: this process is part of a process group.
    """
    model, layout, train = (run.model, run.layout, run.train) if isinstance(run, Run) else run
    check(model, layout, train, rank)
    on = target(target_name, family)
    problem = Problem(model=model, layout=layout, train=train, rank=rank)
    started = time.perf_counter()
    found = estimate(problem, on) if fast else run_whole(problem, on, steps=steps)
    return DryRun(
        rank=rank,
        at=problem.at,
        layers=problem.layers,
        target=target_name,
        memory=found.memory,
        reserved=Reserved(**found.reserved) if found.reserved else None,
        traffic=found.traffic,
        estimated=found.execution is None,
        seconds=time.perf_counter() - started,
        execution=found.execution,
    )


def stage_ranks(layout: Layout) -> tuple[int, ...]:
    """One rank for each pipeline stage: the ranks of a stage hold parts of equal sizes and do the same."""
    stages = range(layout.pipeline_stage)
    return tuple(layout.rank(Coordinates(data=0, pipeline=stage, context=0, model=0)) for stage in stages)
