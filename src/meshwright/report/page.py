"""The frame that pages share: one file that loads nothing, its tables and its lists."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template


def page(*, kind: str, title: str, heading: str, asked: str, sections: Iterable[str], footer: str) -> str:
    """A whole page.

    Args:
        kind: the verb that made it.
        asked: what the page is about, in a line below the heading.
        sections: HTML, in order; empty ones are left out.
    """
    return Template(_resource("page.html")).substitute(
        style=_resource("page.css"),
        kind=escape(kind),
        title=escape(title),
        heading=escape(heading),
        asked=escape(asked),
        sections="\n".join(section for section in sections if section),
        footer=escape(footer),
    )


def table(
    head: Sequence[str], body: Iterable[Sequence[str]], classes: Mapping[int, str], marked: Collection[int] = ()
) -> str:
    """A table that scrolls where it is too wide.

    Args:
        classes: of columns, by place; ``left`` aligns to the left, others are known to the style sheet.
        marked: places of rows to stand out.
    """
    sides = [f' class="{classes[place]}"' if place in classes else "" for place in range(len(head))]
    heads = "".join(f"<th{side}>{escape(cell)}</th>" for side, cell in zip(sides, head, strict=True))
    rows = "".join(
        ('<tr class="best">' if place in marked else "<tr>")
        + "".join(f"<td{side}>{escape(cell)}</td>" for side, cell in zip(sides, cells, strict=True))
        + "</tr>"
        for place, cells in enumerate(body)
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def bullets(title: str, lines: Iterable[str]) -> str:
    """A list under a heading; nothing without lines."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>" if items else ""


def _resource(name: str) -> str:
    return resources.files("meshwright.report").joinpath(name).read_text(encoding="utf-8")
