"""Memory of one optimizer step from event to event, by category: what a chart of it shows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.dryrun.allocator import CachingAllocator, requests
from meshwright.dryrun.analysis import CATEGORIES, Category, category
from meshwright.dryrun.tape import Phase, Tape

Bytes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Span:
    """Events ``start`` up to, not including, ``end`` of the step. ``micro_batch``: -1 outside forward and backward."""

    phase: Phase
    micro_batch: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Bytes after events of one step.

    Attributes:
        length: events of the step.
        points: which of them are shown, counted from 0; [points].
        categories: live bytes of each category that occurs; [points] each.
        reserved: what the allocator holds in native segments, [points]; None where none was asked for.
        spans: phases and micro-batches in order; they cover the step.
    """

    length: int
    points: NDArray[np.int64]
    categories: Mapping[Category, Bytes]
    reserved: Bytes | None
    spans: tuple[Span, ...]

    @cached_property
    def totals(self) -> Bytes:
        """Live bytes, [points]."""
        return np.sum([*self.categories.values()], axis=0)

    @property
    def peak(self) -> int:
        """Place among the points where most lives, the first such."""
        return int(self.totals.argmax())

    def span_at(self, place: int) -> Span:
        """The span that a point lies in."""
        return next(span for span in self.spans if self.points[place] < span.end)

    def thinned(self, most: int) -> "Timeline":
        """At most ``most`` points: the highest and the lowest of each of ``most / 2`` stretches of equal length."""
        if len(self.points) <= most:
            return self
        stretches = np.array_split(np.arange(len(self.points)), most // 2)
        totals = self.totals
        ends = [(places[totals[places].argmin()], places[totals[places].argmax()]) for places in stretches]
        kept = np.unique(ends)
        return replace(
            self,
            points=self.points[kept],
            categories={name: sizes[kept] for name, sizes in self.categories.items()},
            reserved=None if self.reserved is None else self.reserved[kept],
        )


def timeline(tape: Tape, step: int = -1, *, cached: bool = False) -> Timeline:
    """Every event of one step, by default the last.

    Args:
        cached: also replay the tape through the caching allocator.
    """
    number = step % len(tape.starts)
    inside = tape.step(number)
    changes: dict[Category, Bytes] = {}
    for index, (change, record, _) in enumerate(tape.events[: inside.stop]):
        name = category(record, number)
        if name not in changes:
            changes[name] = np.zeros(len(inside) + 1, dtype=np.int64)
        # Place 0 is all that was there before the step.
        changes[name][max(index - inside.start + 1, 0)] += change
    sums = {name: changes[name].cumsum()[1:] for name in CATEGORIES if name in changes}
    return Timeline(
        length=len(inside),
        points=np.arange(len(inside)),
        categories={name: sizes for name, sizes in sums.items() if sizes.any()},
        reserved=_reserved(tape)[inside.start : inside.stop] if cached else None,
        spans=_spans(tape, inside),
    )


def _reserved(tape: Tape) -> Bytes:
    """Bytes in native segments after each event; 0 before the first step."""
    allocator = CachingAllocator()
    grown = np.zeros(len(tape.events), dtype=np.int64)
    for index, record, size in requests(tape):
        if size:
            before = allocator.reserved
            allocator.allocate(record.number, size, record.stream)
            grown[index] += allocator.reserved - before
        else:
            allocator.free(record.number)
    return grown.cumsum()


def _spans(tape: Tape, inside: range) -> tuple[Span, ...]:
    """Phases and micro-batches; what happens between two of them belongs to the one before."""
    starts: dict[tuple[Phase, int], int] = {}
    for place, index in enumerate(inside):
        moment = tape.events[index].moment
        starts.setdefault((moment.phase, moment.micro_batch), place)
    ends = [*list(starts.values())[1:], len(inside)]
    return tuple(
        Span(phase=phase, micro_batch=micro_batch, start=start, end=end)
        for ((phase, micro_batch), start), end in zip(starts.items(), ends, strict=True)
    )
