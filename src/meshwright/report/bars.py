"""Tables with a bar in each row, and histograms of two series."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from meshwright.report.charts import WIDTH, scrolling, ticks
from meshwright.report.numbers import short

LEFT, TOP, HEIGHT, BELOW = 56, 14, 200, 40
# What a fill must measure at least to be seen, per cent.
THINNEST = 0.15


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """A row: its name, a line about it, a bar, figures.

    Attributes:
        fills: (colour, start, length) of parts of the bar, shares of its track.
        strong: whether the row stands out.
    """

    name: str
    about: str = ""
    fills: tuple[tuple[str, float, float], ...]
    cells: tuple[str, ...]
    strong: bool = False


def bar_table(head: Sequence[str], rows: Iterable[BarRow]) -> str:
    """A table of rows; ``head`` names the first column and the figures."""
    name, *figures = head
    heads = "".join(f"<th>{escape(figure)}</th>" for figure in figures)
    body = "".join(map(_row, rows))
    return (
        f'<div class="scroll"><table class="bars"><thead><tr><th class="left">{escape(name)}</th>'
        f'<th class="track"></th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(row: BarRow) -> str:
    about = f"<small>{escape(row.about)}</small>" if row.about else ""
    fills = "".join(
        f'<i style="left:{100 * start:.2f}%;width:{max(100 * length, THINNEST):.2f}%;background:var(--c-{colour})"></i>'
        for colour, start, length in row.fills
        if length > 0
    )
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells)
    marked = ' class="best"' if row.strong else ""
    return (
        f'<tr{marked}><td class="left">{escape(row.name)}{about}</td>'
        f'<td class="track"><div>{fills}</div></td>{cells}</tr>'
    )


def histogram(names: Sequence[str], series: Mapping[str, Sequence[int]], *, unit: str, label: str) -> str:
    """Columns side by side at each name; ``series`` are heights by colour."""
    most = max(max(heights) for heights in series.values())
    step = (WIDTH - LEFT) / len(names)
    width = min(0.8 * step / len(series), 36)
    pieces = [f'<svg viewBox="0 0 {WIDTH} {TOP + HEIGHT + BELOW}" role="img" aria-label="{escape(label)}">']
    for value in ticks(most):
        y = TOP + HEIGHT * (1 - value / most)
        pieces.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}"/>')
        pieces.append(f'<text class="soft" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for place, name in enumerate(names):
        middle = LEFT + (place + 0.5) * step
        pieces.append(f'<text class="soft" x="{middle:.1f}" y="{TOP + HEIGHT + 17}" text-anchor="middle">{name}</text>')
        for number, (colour, heights) in enumerate(series.items()):
            height = HEIGHT * heights[place] / most
            x = middle + (number - len(series) / 2) * width
            pieces.append(
                f'<rect x="{x:.1f}" y="{TOP + HEIGHT - height:.1f}" width="{width - 1:.1f}" height="{height:.1f}"'
                f' fill="var(--c-{colour})"><title>{name}: {heights[place]:,}</title></rect>'
            )
    pieces.append(f'<text class="soft" x="{WIDTH}" y="{TOP + HEIGHT + 34}" text-anchor="end">{escape(unit)}</text>')
    return scrolling([*pieces, "</svg>"])
