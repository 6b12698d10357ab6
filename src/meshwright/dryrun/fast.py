"""A dry run at a fraction of the cost: what is small is run, the rest extrapolated from small runs.

First steps are enough: later ones need the same (a test says so).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.dryrun.analysis import Peak, StepMemory, layers_together
from meshwright.dryrun.found import Found, run_whole
from meshwright.dryrun.reduced import Problem, Shape, layers_alike, own_group, reduce
from meshwright.dryrun.small_runs import SmallRuns
from meshwright.dryrun.tape import Phase, Tape
from meshwright.dryrun.target import Target
from meshwright.dryrun.traffic import Message, Traffic

AFFORDABLE = 160
"""Layers x micro-batches that are run rather than extrapolated: a few seconds on one core."""
ALL_LAYERS = "layers"


@dataclass(frozen=True, kw_only=True)
class Point:
    """A small run. ``places``: most live bytes by phase, and micro-batch and place in the model."""

    problem: Problem
    found: Found
    places: Mapping[tuple[Phase, str], int]


def estimate(problem: Problem, on: Target) -> Found:
    """One step: all of it where that is affordable or layers differ, else extrapolated."""
    if len(problem.layers) * problem.micro_batches <= AFFORDABLE or not layers_alike(problem):
        return run_whole(problem, on, steps=1)
    runs = SmallRuns(problem, AFFORDABLE)
    points = {shape: _point(problem, shape, on) for shape in runs.shapes}
    memory = _memory(runs, points, problem)
    return Found(
        memory=memory,
        reserved=_reserved(runs, points, problem, on, memory.peak.bytes),
        traffic=_traffic(runs, points, problem),
        execution=None,
    )


def _point(problem: Problem, shape: Shape, on: Target) -> Point:
    small = reduce(problem, shape)
    found = run_whole(small, on, steps=1)
    assert found.execution is not None
    return Point(problem=small, found=found, places=_place_peaks(found.execution.tape, small))


def _place_peaks(tape: Tape, problem: Problem) -> dict[tuple[Phase, str], int]:
    total = sum(event.change for event in tape.events[: tape.starts[-1]])
    peaks: dict[tuple[Phase, str], int] = {}
    for change, _, moment in tape.events[tape.starts[-1] :]:
        total += change
        if change < 0:
            continue
        turn = {0: "first", problem.micro_batches - 1: "last"}.get(moment.micro_batch, "between")
        for module in _places(moment.module, problem):
            place = f"{turn} {module}"
            peaks[moment.phase, place] = max(peaks.get((moment.phase, place), 0), total)
    return peaks


def _places(module: str, problem: Problem) -> list[str]:
    """Where in the model a module stands, told alike of few and of many layers; none for a layer in the middle.

    The worst moment of a phase may be another one in the whole run than in a small one; that of a place is the same.
    Layers whose messages travel together (`parallel.zero`: groups are cut from the bottom, the rest is at the top)
    share their moments: told are those of the bottom group and of the two at the top.
    """
    first, _, rest = module.partition(".")
    if first != ALL_LAYERS:
        return [first]
    number, group = len(problem.layers), problem.layout.comm_fusion
    index = problem.layers.index(int(rest.partition(".")[0]))
    top_two = group + (number % group or group)
    bottom = [f"layer {index}"] if index < group else []
    top = [f"layer {index - number} from the end"] if index >= number - top_two else []
    return bottom + top


def _reserved(
    runs: SmallRuns, points: Mapping[Shape, Point], problem: Problem, on: Target, allocated: int
) -> dict[str, int]:
    """What the allocator holds: live tensors, and what a few runs show that it holds beyond them.

    Segments come in steps of 2 and 20 MiB, too coarse to extrapolate from runs that differ by one layer.
    """
    if not on.cached:
        return {}
    slacks = {shape: _slack(points.get(shape) or _point(problem, shape, on)) for shape in runs.slack_shapes}
    names = next(iter(slacks.values()))
    return {name: allocated + runs.slack({shape: slack[name] for shape, slack in slacks.items()}) for name in names}


def _slack(point: Point) -> dict[str, int]:
    allocated = point.found.memory.peak.bytes
    return {name: reserved - allocated for name, reserved in point.found.reserved.items()}


def _memory(runs: SmallRuns, points: Mapping[Shape, Point], problem: Problem) -> StepMemory:
    last = points[runs.shapes[-1]]
    phases = {phase: _peak(runs, points, problem, phase, last) for phase in last.found.memory.phases}
    before = runs.held({shape: {"": point.found.memory.before} for shape, point in points.items()})
    return StepMemory(before=before[""], phases=phases)


def _peak(runs: SmallRuns, points: Mapping[Shape, Point], problem: Problem, phase: Phase, last: Point) -> Peak:
    peaks = {shape: point.found.memory.phases[phase] for shape, point in points.items()}
    places = runs.held({shape: point.places for shape, point in points.items()})
    everywhere = set.intersection(*(set(point.places) for point in points.values()))
    seen = peaks[runs.shapes[-1]]
    # The parts are those of the small runs' worst moments: where the whole run's is another, they add up roughly only.
    return Peak(
        bytes=max(places[key] for key in everywhere if key[0] == phase),
        moment=seen.moment._replace(module=_module(seen.moment.module, last.problem, problem), micro_batch=-1),
        event=seen.event,
        categories=runs.held({shape: peak.categories for shape, peak in peaks.items()}),
        modules=runs.held({shape: layers_together(peak.modules) for shape, peak in peaks.items()}),
    )


def _module(name: str, small: Problem, problem: Problem) -> str:
    """A module of a small run in the whole one: its layer counted from the nearer end of the stage."""
    path = name.split(".")
    if path[0] != ALL_LAYERS:
        return name
    index = small.layers.index(int(path[1]))
    near_end = index >= len(small.layers) / 2
    place = index - len(small.layers) if near_end else index
    return ".".join([ALL_LAYERS, str(problem.layers[place]), *path[2:]])


def _traffic(runs: SmallRuns, points: Mapping[Shape, Point], problem: Problem) -> Traffic:
    counts, sizes = {}, {}
    for shape, point in points.items():
        own = {(m.kind, own_group(m.ranks, point.problem, problem)): m for m in point.found.traffic.messages}
        counts[shape] = {key: message.count for key, message in own.items()}
        sizes[shape] = {key: message.bytes for key, message in own.items()}
    bytes_ = runs.done(sizes)
    messages = [
        Message(kind=kind, ranks=ranks, count=count, bytes=bytes_[kind, ranks])
        for (kind, ranks), count in runs.done(counts).items()
    ]
    flops = runs.done({shape: {"": point.found.traffic.flops} for shape, point in points.items()})
    return Traffic(messages=tuple(sorted(messages, key=lambda message: -message.bytes)), flops=flops[""])
