"""Memory over one step as a stacked area chart, phases and micro-batches in a strip below it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from meshwright.dryrun.analysis import Category
from meshwright.dryrun.tables import Unit, unit_for
from meshwright.dryrun.timeline import Bytes, Span, Timeline
from meshwright.report.charts import WIDTH, scrolling, ticks

COLOURS: Mapping[Category, str] = {
    "weights": "weights",
    "optimizer": "optimizer",
    "inputs and tables": "inputs",
    "workspaces": "workspaces",
    "gradients": "gradients",
    "gathered weights": "gathered",
    "saved activations": "activations",
    "recomputed": "recomputed",
    "logits and loss": "logits",
    "temporaries": "temporaries",
    "communication": "communication",
}
"""Colour of each category, from the bottom of the stack: what stays before what comes and goes."""
LEFT, RIGHT, TOP, HEIGHT = 56, 12, 24, 330
STRIP, BELOW = 20, 50
MOST_SLICES, MOST_LINES = 160, 60
SLICE_POINTS = 8
FAR = 2.0
"""A limit this many times above everything else is not drawn: it would press the curve flat."""


@dataclass(frozen=True)
class _Frame:
    """Scales from events and bytes to the drawing."""

    length: int
    top: float

    def x(self, event: float) -> float:
        return LEFT + event * (WIDTH - LEFT - RIGHT) / self.length

    def y(self, size: float) -> float:
        return TOP + HEIGHT * (1 - size / self.top)


def memory_chart(line: Timeline, *, unit: Unit, usable: int, peak: str) -> str:
    """The chart of a timeline and the legend of it.

    Args:
        usable: bytes of the device for the allocator; a line, unless it is `FAR` above.
        peak: the worst moment in words.
    """
    highest = max(int(line.totals.max()), 0 if line.reserved is None else int(line.reserved.max()))
    near = usable <= FAR * highest
    frame = _Frame(line.length, 1.04 * max(highest, usable if near else 0))
    height = TOP + HEIGHT + STRIP + BELOW
    pieces = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="memory over one step, {escape(peak)}">',
        *_axes(frame, unit),
        *_areas(line, frame),
        *_boundaries(line.spans, frame),
        *_lines(line, frame),
        *(_limit(usable, frame) if near else ()),
        *_strip(line.spans, frame),
        *_peak(line, frame, peak),
        *_slices(line, frame, unit),
        "</svg>",
    ]
    return f"{_legend(line, unit, usable, near=near)}{scrolling(pieces)}{_phase_legend()}"


def _axes(frame: _Frame, unit: Unit) -> Iterator[str]:
    for value in ticks(frame.top / unit.bytes):
        y = frame.y(value * unit.bytes)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield f'<text class="soft" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.10g}</text>'
    yield f'<text class="soft" x="0" y="13">{escape(unit.name)}</text>'
    floor = TOP + HEIGHT + STRIP + 18
    for value in ticks(frame.length):
        yield f'<text class="soft" x="{frame.x(value):.1f}" y="{floor}" text-anchor="middle">{value:.10g}</text>'
    yield (
        f'<text class="soft" x="{WIDTH - RIGHT}" y="{floor + 18}" text-anchor="end">'
        "allocations and releases since the step began</text>"
    )


def _areas(line: Timeline, frame: _Frame) -> Iterator[str]:
    """Each category down to the axis, those above first: one edge each instead of two."""
    names = [name for name in COLOURS if name in line.categories]
    edges = np.cumsum([line.categories[name] for name in names], axis=0)
    for name, edge in reversed([*zip(names, edges, strict=True)]):
        floor = f"{frame.y(0):.1f}"
        outline = " ".join(_corners(line.points, edge, frame))
        start, end = f"{frame.x(line.points[0]):.1f}", f"{frame.x(line.points[-1]):.1f}"
        yield f'<path class="area" fill="var(--c-{COLOURS[name]})" d="M{start} {floor}L{outline} {end} {floor}z"/>'


def _corners(points: Bytes, sizes: Bytes, frame: _Frame) -> Iterator[str]:
    """Points of a curve without those inside level stretches."""
    heights = [f"{frame.y(size):.1f}" for size in sizes]
    last = len(heights) - 1
    for place, height in enumerate(heights):
        if 0 < place < last and heights[place - 1] == height == heights[place + 1]:
            continue
        yield f"{frame.x(points[place]):.1f} {height}"


def _lines(line: Timeline, frame: _Frame) -> Iterator[str]:
    curves = [("total", line.totals)] + ([] if line.reserved is None else [("reserved", line.reserved)])
    for kind, sizes in curves:
        yield f'<polyline class="{kind}" points="{" ".join(_corners(line.points, sizes, frame))}"/>'


def _limit(usable: int, frame: _Frame) -> Iterator[str]:
    y = f"{frame.y(usable):.1f}"
    for kind in ("halo", "limit"):
        yield f'<line class="{kind}" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>'


def _boundaries(spans: Sequence[Span], frame: _Frame) -> Iterator[str]:
    if len(spans) > MOST_LINES:
        return
    for span in spans[1:]:
        x = f"{frame.x(span.start):.1f}"
        yield f'<line class="between" x1="{x}" y1="{TOP}" x2="{x}" y2="{TOP + HEIGHT + STRIP}"/>'


def _strip(spans: Sequence[Span], frame: _Frame) -> Iterator[str]:
    top = TOP + HEIGHT + 2
    for span in spans:
        x, end = frame.x(span.start), frame.x(span.end)
        yield (
            f'<rect class="{span.phase}" x="{x:.1f}" y="{top}" width="{max(end - x - 0.5, 0.2):.1f}" height="{STRIP}"/>'
        )
        number = str(span.micro_batch) if span.micro_batch >= 0 else ""
        if number and end - x > 7 * len(number) + 4:
            middle = (x + end) / 2
            yield f'<text class="on-{span.phase}" x="{middle:.1f}" y="{top + 14}" text-anchor="middle">{number}</text>'


def _peak(line: Timeline, frame: _Frame, words: str) -> Iterator[str]:
    x, y = frame.x(line.points[line.peak]), frame.y(line.totals[line.peak])
    anchor = "start" if x < WIDTH / 3 else "end" if x > WIDTH * 2 / 3 else "middle"
    yield f'<line class="peak" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{TOP + HEIGHT + STRIP}"/>'
    yield f'<circle class="peak" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    yield f'<text x="{x:.1f}" y="{TOP - 11}" text-anchor="{anchor}">{escape(words)}</text>'


def _slices(line: Timeline, frame: _Frame, unit: Unit) -> Iterator[str]:
    """Invisible, side by side: each says what its highest point is made of."""
    number = min(MOST_SLICES, max(len(line.points) // SLICE_POINTS, 1))
    for places in np.array_split(np.arange(len(line.points)), number):
        place = int(places[line.totals[places].argmax()])
        start = line.points[places[0]]
        end = line.points[places[-1] + 1] if places[-1] + 1 < len(line.points) else line.length
        yield (
            f'<rect class="slice" x="{frame.x(start):.1f}" y="{TOP}" width="{frame.x(end) - frame.x(start):.1f}"'
            f' height="{HEIGHT + STRIP}"><title>{escape(_said(line, place, unit))}</title></rect>'
        )


def _said(line: Timeline, place: int, unit: Unit) -> str:
    span = line.span_at(place)
    where = f"{span.phase}, micro-batch {span.micro_batch}" if span.micro_batch >= 0 else span.phase
    held = sorted(((int(sizes[place]), name) for name, sizes in line.categories.items()), reverse=True)
    parts = [f"{name} {unit.of(size)}" for size, name in held if unit.shows(size)]
    return "\n".join([where, f"{unit.named(line.totals[place])} at most here:", *parts])


def _legend(line: Timeline, unit: Unit, usable: int, *, near: bool) -> str:
    items = [
        f'<li><i style="background:var(--c-{colour})"></i>{escape(name)}</li>'
        for name, colour in COLOURS.items()
        if name in line.categories
    ]
    if line.reserved is not None:
        items.append(f'<li><i class="line reserved"></i>reserved, {unit.named(line.reserved.max())} at most</li>')
    above = "" if near else ", above this chart"
    items.append(f'<li><i class="line limit"></i>{usable_words(usable)}{above}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def usable_words(usable: int) -> str:
    """``77.10 GiB for the allocator``."""
    return f"{unit_for(usable).named(usable)} for the allocator"


def _phase_legend() -> str:
    words = {
        "forward": "forward of a micro-batch",
        "backward": "backward of a micro-batch",
        "gradients": "gradients of the step",
        "optimizer": "optimizer",
    }
    items = "".join(f'<li><i class="{phase}"></i>{word}</li>' for phase, word in words.items())
    return f'<ul class="legend">{items}</ul>'
