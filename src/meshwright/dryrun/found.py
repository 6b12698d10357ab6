"""What a rank does in a step, from a run of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.dryrun.allocator import replay
from meshwright.dryrun.analysis import StepMemory, step_memory
from meshwright.dryrun.execute import Execution, execute
from meshwright.dryrun.reduced import Problem
from meshwright.dryrun.tape import Tape
from meshwright.dryrun.target import Target
from meshwright.dryrun.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a rank does in a step.

    Attributes:
        reserved: most bytes that the allocator holds, by kind of segments; empty without a caching allocator.
        execution: the run, where it was the whole one; None where figures are extrapolated.
    """

    memory: StepMemory
    reserved: Mapping[str, int]
    traffic: Traffic
    execution: Execution | None


def run_whole(problem: Problem, on: Target, *, steps: int) -> Found:
    """Run all layers and micro-batches; the last step is reported."""
    execution = execute(problem.model, problem.layout, problem.train, problem.rank, on=on, steps=steps)
    tape = execution.tape
    return Found(
        memory=step_memory(tape),
        reserved=reserved_peaks(tape, on),
        traffic=execution.traffic,
        execution=execution,
    )


def reserved_peaks(tape: Tape, on: Target) -> dict[str, int]:
    """Bytes that the device's caching allocator holds at most, by kind of segments."""
    kinds = {"native": False, "expandable": True} if on.cached else {}
    return {name: replay(tape, expandable=expandable).peak_reserved for name, expandable in kinds.items()}
