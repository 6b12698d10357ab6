"""A dry run from a few small ones: memory, traffic and FLOPs are linear in layers and micro-batches.

The axes are the layers of the stage, the micro-batches that it holds at a time, and those of a step beyond them, each
of which brings its tokens and receive buffers. First steps are enough: later ones need the same (a test says so).
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from meshwright.dryrun.allocator import replay
from meshwright.dryrun.analysis import Peak, StepMemory, step_memory
from meshwright.dryrun.execute import execute
from meshwright.dryrun.reduced import LEAST_IN_FLIGHT, Problem, Shape, few_layers, own_group, reduce, wide_layers
from meshwright.dryrun.tape import Phase, Tape
from meshwright.dryrun.target import Target
from meshwright.dryrun.traffic import Message, Traffic

Key = TypeVar("Key", bound=Hashable)
ALL_LAYERS = "layers"
SETTLED = 2
"""Micro-batches past those in flight until every further one does the same."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a rank does in a step. ``reserved``: by kind of segments, empty without a caching allocator."""

    memory: StepMemory
    reserved: Mapping[str, int]
    traffic: Traffic


@dataclass(frozen=True, kw_only=True)
class Point:
    """A small run. ``places``: most live bytes by phase, and micro-batch and place in the model."""

    problem: Problem
    found: Found
    places: Mapping[tuple[Phase, str], int]


def estimate(problem: Problem, on: Target) -> Found:
    """Run small and extrapolate; see `reduced.layers_alike`."""
    plan = _Plan(problem)
    points = {shape: _point(problem, shape, on) for shape in plan.shapes}
    memory = _memory(plan, points, problem)
    return Found(
        memory=memory,
        reserved=_reserved(plan, points, problem, on, memory.peak.bytes),
        traffic=_traffic(plan, points, problem),
    )


class _Plan:
    """Which small runs to make, and how numbers follow from theirs.

    Two numbers of layers times two lengths of the step; and where those differ in what is in flight, one run more for
    what a micro-batch beyond that brings.
    """

    def __init__(self, problem: Problem) -> None:
        self.stage = len(problem.layers)
        self.whole, self.micro_batches = problem.in_flight, problem.micro_batches
        further = self.micro_batches - self.whole
        least = LEAST_IN_FLIGHT + (problem.layout.pipeline_schedule == "gpipe")
        self.layers = few_layers(problem)
        self.flights: tuple[int, ...] = (least, least + 1) if self.whole > least + 1 else (self.whole,)
        self.extras: tuple[int, ...] = (SETTLED, SETTLED + 1) if further > SETTLED + 1 else (further,)
        extras = self.extras[:1] if len(self.flights) == 2 else self.extras
        self.steps = [(flight, extra) for flight in self.flights for extra in extras]

    @property
    def shapes(self) -> list[Shape]:
        """The small runs, the one nearest to the whole last."""
        more = [_shape(self.layers[0], self.flights[0], self.extras[1])] if self._lengthened else []
        return more + [_shape(layers, *step) for layers in self.layers for step in self.steps]

    @property
    def _lengthened(self) -> bool:
        return len(self.flights) == 2 and len(self.extras) == 2

    def held(self, runs: Mapping[Shape, Mapping[Key, int]]) -> dict[Key, int]:
        """Bytes that live at a time, of the whole run; a name that a small run lacks is 0 there."""
        if len(self.flights) == 1:
            return self._values(runs, [extra for _, extra in self.steps], self.micro_batches - self.whole)
        found = self._values(runs, self.flights, self.whole)
        if self._lengthened:
            longer = runs[_shape(self.layers[0], self.flights[0], self.extras[1])]
            shorter = runs[_shape(self.layers[0], self.flights[0], self.extras[0])]
            beyond = self.micro_batches - self.whole - self.extras[0]
            found = {key: size + beyond * (longer.get(key, 0) - shorter.get(key, 0)) for key, size in found.items()}
        return found

    def done(self, runs: Mapping[Shape, Mapping[Key, int]]) -> dict[Key, int]:
        """What adds up over the step, of the whole run."""
        return self._values(runs, [flight + extra for flight, extra in self.steps], self.micro_batches)

    def _values(self, runs: Mapping[Shape, Mapping[Key, int]], places: Sequence[int], place: int) -> dict[Key, int]:
        names = dict.fromkeys(name for values in runs.values() for name in values)

        def value(name: Key) -> int:
            by_layers = [
                _line(places, [runs[_shape(layers, *step)].get(name, 0) for step in self.steps], place)
                for layers in self.layers
            ]
            return round(_line(self.layers, by_layers, self.stage))

        return {name: value(name) for name in names}


def _shape(layers: int, in_flight: int, extra: int) -> Shape:
    return Shape(layers=layers, in_flight=in_flight, micro_batches=in_flight + extra)


def _line(places: Sequence[int], heights: Sequence[float], place: int) -> float:
    """Height at a place of the line through one or two points."""
    if len(places) == 1:
        return heights[0]
    slope = (heights[1] - heights[0]) / (places[1] - places[0])
    return heights[0] + slope * (place - places[0])


def reserved_peaks(tape: Tape, on: Target) -> dict[str, int]:
    """Bytes that the device's caching allocator holds at most, by kind of segments."""
    kinds = {"native": False, "expandable": True} if on.cached else {}
    return {name: replay(tape, expandable=expandable).peak_reserved for name, expandable in kinds.items()}


def _point(problem: Problem, shape: Shape, on: Target) -> Point:
    small = reduce(problem, shape)
    execution = execute(small.model, small.layout, small.train, small.rank, on=on, steps=1)
    tape = execution.tape
    found = Found(memory=step_memory(tape), reserved=reserved_peaks(tape, on), traffic=execution.traffic)
    return Point(problem=small, found=found, places=_place_peaks(tape, small))


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
    """
    first, _, rest = module.partition(".")
    if first != ALL_LAYERS:
        return [first]
    index = problem.layers.index(int(rest.partition(".")[0]))
    ends = {"bottom layer": 0, "next to top layer": len(problem.layers) - 2, "top layer": len(problem.layers) - 1}
    return [name for name, at in ends.items() if at == index]


def _reserved(
    plan: _Plan, points: Mapping[Shape, Point], problem: Problem, on: Target, allocated: int
) -> dict[str, int]:
    """What the allocator holds: beyond live tensors, about as much as in a short step of as many layers.

    Segments come in steps of 2 and 20 MiB, too coarse to extrapolate along every axis.
    """
    if not on.cached:
        return {}
    small = _shape(plan.layers[-1], *plan.steps[0])
    wide = _shape(wide_layers(problem), *plan.steps[0])
    slacks = {shape: _slack(points.get(shape) or _point(problem, shape, on)) for shape in (small, wide)}
    if plan.stage <= wide.layers or wide == small:
        return {name: allocated + slack for name, slack in slacks[wide].items()}
    places = (small.layers, wide.layers)
    return {
        name: allocated + round(_line(places, [slacks[small][name], slack], plan.stage))
        for name, slack in slacks[wide].items()
    }


def _slack(point: Point) -> dict[str, int]:
    allocated = point.found.memory.peak.bytes
    return {name: reserved - allocated for name, reserved in point.found.reserved.items()}


def _memory(plan: _Plan, points: Mapping[Shape, Point], problem: Problem) -> StepMemory:
    last = points[plan.shapes[-1]]
    phases = {phase: _peak(plan, points, problem, phase, last) for phase in last.found.memory.phases}
    before = plan.held({shape: {"": point.found.memory.before} for shape, point in points.items()})
    return StepMemory(before=before[""], phases=phases)


def _peak(plan: _Plan, points: Mapping[Shape, Point], problem: Problem, phase: Phase, last: Point) -> Peak:
    peaks = {shape: point.found.memory.phases[phase] for shape, point in points.items()}
    places = plan.held({shape: point.places for shape, point in points.items()})
    everywhere = set.intersection(*(set(point.places) for point in points.values()))
    seen = peaks[plan.shapes[-1]]
    # The parts are those of the small runs' worst moments: where the whole run's is another, they add up roughly only.
    return Peak(
        bytes=max(places[key] for key in everywhere if key[0] == phase),
        moment=seen.moment._replace(module=_module(seen.moment.module, last.problem, problem), micro_batch=-1),
        event=seen.event,
        categories=plan.held({shape: peak.categories for shape, peak in peaks.items()}),
        modules=plan.held({shape: _layers_together(peak.modules) for shape, peak in peaks.items()}),
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


def _layers_together(modules: Mapping[str, int]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, size in modules.items():
        sums[f"all {ALL_LAYERS}" if name.startswith(f"{ALL_LAYERS}.") else name] += size
    return dict(sums)


def _traffic(plan: _Plan, points: Mapping[Shape, Point], problem: Problem) -> Traffic:
    counts, sizes = {}, {}
    for shape, point in points.items():
        own = {(m.kind, own_group(m.ranks, point.problem, problem)): m for m in point.found.traffic.messages}
        counts[shape] = {key: message.count for key, message in own.items()}
        sizes[shape] = {key: message.bytes for key, message in own.items()}
    bytes_ = plan.done(sizes)
    messages = [
        Message(kind=kind, ranks=ranks, count=count, bytes=bytes_[kind, ranks])
        for (kind, ranks), count in plan.done(counts).items()
    ]
    flops = plan.done({shape: {"": point.found.traffic.flops} for shape, point in points.items()})
    return Traffic(messages=tuple(sorted(messages, key=lambda message: -message.bytes)), flops=flops[""])
