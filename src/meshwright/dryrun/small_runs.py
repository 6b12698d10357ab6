"""Which small runs to make, and how the figures of the whole one follow from theirs.

The axes are the layers of the stage, the micro-batches that it holds at a time, and those of a step beyond them, each
of which brings its tokens and receive buffers. Figures are linear along each.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from meshwright.dryrun.reduced import LEAST_IN_FLIGHT, Problem, Shape, few_layers, wide_layers

Key = TypeVar("Key", bound=Hashable)
SETTLED = 2
"""Micro-batches past those in flight until every further one does the same."""
DEEP = 8
"""Micro-batches in flight that show what the allocator loses with each."""


class SmallRuns:
    """The small runs for one problem.

    One or two numbers of layers times one or two lengths of the step; and where two lengths differ in what is in
    flight, one run more for what a micro-batch beyond that brings. As many layers and micro-batches in flight as are
    affordable: most of all reserved memory is not quite linear in them.
    """

    def __init__(self, problem: Problem, affordable: int) -> None:
        self.stage = len(problem.layers)
        self.whole, self.micro_batches = problem.in_flight, problem.micro_batches
        further = self.micro_batches - self.whole
        self.extras: tuple[int, ...] = (SETTLED, SETTLED + 1) if further > SETTLED + 1 else (further,)
        # Some micro-batch must be neither the first nor the last.
        least = LEAST_IN_FLIGHT + (further == 0)
        few_flights = (least, least + 1) if self.whole > least + 1 else (self.whole,)
        self.layers, self.flights = few_layers(problem), few_flights
        for layers, flights in (((self.stage,), (self.whole,)), (self.layers, (self.whole,))):
            if self._cost(layers, flights) <= affordable:
                self.layers, self.flights = layers, flights
                break
        extras = self.extras[:1] if len(self.flights) == 2 else self.extras
        self.steps = [(flight, extra) for flight in self.flights for extra in extras]
        self._wide_layers = wide_layers(problem)

    def _cost(self, layers: Sequence[int], flights: Sequence[int]) -> int:
        """Layers x micro-batches of all runs."""
        return sum(layers) * sum(flight + extra for flight in flights for extra in self.extras)

    @property
    def shapes(self) -> list[Shape]:
        """The small runs, the one nearest to the whole last."""
        more = [_shape(self.layers[0], self.flights[0], self.extras[1])] if self._lengthened else []
        return more + [_shape(layers, *step) for layers in self.layers for step in self.steps]

    @property
    def slack_shapes(self) -> list[Shape]:
        """Runs that show what the allocator holds beyond live tensors: few layers, many, and more in flight."""
        few, (flight, extra) = self.layers[-1], self.steps[0]
        deep = min(max(flight, DEEP), self.whole)
        shapes = (_shape(few, flight, extra), _shape(max(self._wide_layers, few), flight, extra))
        return list(dict.fromkeys((*shapes, _shape(few, deep, extra))))

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

    def slack(self, values: Mapping[Shape, float]) -> int:
        """Of the whole run, from values of `slack_shapes`: linear in layers; each layer adds with every micro-batch."""
        few, flight = self.layers[-1], self.steps[0][0]
        beside = {shape.layers: value for shape, value in values.items() if shape.in_flight == flight}
        found = line(list(beside), list(beside.values()), self.stage)
        for shape, value in values.items():
            if shape.in_flight > flight:
                each = (value - beside[few]) / (shape.in_flight - flight)
                found += each * (self.whole - flight) * self.stage / few
        return round(found)

    def _values(self, runs: Mapping[Shape, Mapping[Key, int]], places: Sequence[int], place: int) -> dict[Key, int]:
        names = dict.fromkeys(name for values in runs.values() for name in values)

        def value(name: Key) -> int:
            by_layers = [
                line(places, [runs[_shape(layers, *step)].get(name, 0) for step in self.steps], place)
                for layers in self.layers
            ]
            return round(line(self.layers, by_layers, self.stage))

        return {name: value(name) for name in names}


def _shape(layers: int, in_flight: int, extra: int) -> Shape:
    return Shape(layers=layers, in_flight=in_flight, micro_batches=in_flight + extra)


def line(places: Sequence[int], heights: Sequence[float], place: int) -> float:
    """Height at a place of the line through one or two points."""
    if len(places) == 1:
        return heights[0]
    slope = (heights[1] - heights[0]) / (places[1] - places[0])
    return heights[0] + slope * (place - places[0])
