"""Charts as inline SVG: stacked bars and a pipeline timeline. Colours are names of variables in the style sheet."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.plan.time.report import Span

WIDTH, NAMES, RIGHT = 1120, 220, 90
BAR, GAP = 18, 8
MOST_SPANS, MOST_STAGES = 4000, 16


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One stacked bar.

    Attributes:
        parts: (colour, word, value) from left to right.
        total: the figure at its end, as text.
    """

    name: str
    parts: tuple[tuple[str, str, float], ...]
    total: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A line across all bars at one value."""

    kind: str
    value: float
    text: str = ""


def stacked_bars(bars: Sequence[Bar], *, unit: str, marks: Sequence[Mark] = (), label: str) -> str:
    """Horizontal stacked bars on one scale that starts at 0."""
    most = max([sum(value for _, _, value in bar.parts) for bar in bars] + [mark.value for mark in marks])
    scale = (WIDTH - NAMES - RIGHT) / most
    top, height = 22, 22 + len(bars) * (BAR + GAP) + 24
    pieces = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">']
    for value in ticks(most):
        x = NAMES + value * scale
        pieces.append(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{height - 20}"/>')
        pieces.append(f'<text class="soft" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{value:g}</text>')
    pieces.append(f'<text class="soft" x="{WIDTH - 4}" y="{height - 6}" text-anchor="end">{escape(unit)}</text>')
    for index, bar in enumerate(bars):
        pieces += _bar(bar, top + index * (BAR + GAP) + GAP / 2, scale, unit)
    for mark in marks:
        x = NAMES + mark.value * scale
        pieces.append(f'<line class="{mark.kind}" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{height - 20}"/>')
        pieces.append(f'<text class="soft" x="{x:.1f}" y="13" text-anchor="end">{escape(mark.text)}</text>')
    return scrolling([*pieces, "</svg>"])


def scrolling(pieces: Iterable[str]) -> str:
    """A drawing that stays wide enough to be read: it scrolls on a narrow page."""
    return f'<div class="scroll chart">{"".join(pieces)}</div>'


def legend(entries: Mapping[str, str]) -> str:
    """Word by colour."""
    items = (f'<li><i style="background:var(--c-{colour})"></i>{escape(word)}</li>' for colour, word in entries.items())
    return f'<ul class="legend">{"".join(items)}</ul>'


def timeline_svg(spans: "Sequence[Span]", seconds: float) -> str:
    """Forward and backward passes of every stage over a step.

    A deep pipeline shows some of its stages, a long step its start.
    """
    stages = _shown_stages(max(span.stage for span in spans) + 1)
    shown = [span for span in sorted(spans, key=lambda span: span.start) if span.stage in stages][:MOST_SPANS]
    end = max(span.end for span in shown) if len(shown) == MOST_SPANS else max(seconds, max(s.end for s in spans))
    scale, row = (WIDTH - 80 - 10) / end, 26
    height = 6 + len(stages) * row + 24
    pieces = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="pipeline timeline">']
    for place, stage in enumerate(stages):
        pieces.append(f'<text class="soft" x="0" y="{6 + place * row + 15}">stage {stage}</text>')
    for span in shown:
        x, width = 80 + span.start * scale, max((span.end - span.start) * scale, 0.4)
        y = 6 + stages.index(span.stage) * row
        what = f"stage {span.stage}, {span.kind} of micro-batch {span.micro_batch}"
        pieces.append(
            f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.5, 0.3):.2f}" height="{row - 6}" rx="1.5"'
            f' fill="var(--c-{span.kind})"><title>{what}: {span.start:.3f} to {span.end:.3f} s</title></rect>'
        )
        if width > 18:
            pieces.append(
                f'<text x="{x + width / 2:.2f}" y="{y + 14}" text-anchor="middle" style="fill:#fff;font-size:10px">'
                f"{span.micro_batch}</text>"
            )
    for value in ticks(end):
        x = 80 + value * scale
        pieces.append(f'<text class="soft" x="{x:.1f}" y="{height - 5}" text-anchor="middle">{value:g}</text>')
    pieces.append(f'<text class="soft" x="{WIDTH - 4}" y="{height - 5}" text-anchor="end">s</text>')
    return "".join([*pieces, "</svg>"])


def ticks(most: float) -> list[float]:
    """Round values from 0, at most eight of them."""
    power = 10.0 ** (len(f"{int(most)}") - 1) if most >= 1 else 10.0 ** -(len(f"{1 / most:.0f}"))
    step = next(step for step in (power / 5, power / 2, power, power * 2, power * 5) if most / step <= 8)
    return [step * index for index in range(int(most / step) + 1)]


def _bar(bar: Bar, y: float, scale: float, unit: str) -> list[str]:
    pieces = [f'<text x="{NAMES - 10}" y="{y + 13}" text-anchor="end">{escape(bar.name)}</text>']
    x = float(NAMES)
    for colour, word, value in bar.parts:
        if value <= 0:
            continue
        pieces.append(
            f'<rect x="{x:.2f}" y="{y}" width="{value * scale:.2f}" height="{BAR}" fill="var(--c-{colour})">'
            f"<title>{escape(bar.name)}: {escape(word)} {value:.3g} {escape(unit)}</title></rect>"
        )
        x += value * scale
    pieces.append(f'<text x="{x + 6:.2f}" y="{y + 13}">{escape(bar.total)}</text>')
    return pieces


def _shown_stages(number: int) -> list[int]:
    if number <= MOST_STAGES:
        return list(range(number))
    return sorted({round(index * (number - 1) / (MOST_STAGES - 1)) for index in range(MOST_STAGES)})
