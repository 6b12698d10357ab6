"""A plan as one static HTML page: table, memory bars, time bars, pipeline timeline. Loads nothing."""

from collections.abc import Mapping, Sequence
from html import escape

from meshwright.plan.advice import advise
from meshwright.plan.memory.report import CATEGORIES
from meshwright.plan.misses import closest_misses
from meshwright.plan.search import FITS_UP_TO, Answer, Candidate, one_per_split
from meshwright.plan.text import (
    COLUMNS,
    LEFT,
    assumptions,
    expected_errors,
    full_name,
    layout_words,
    table_rows,
    verdict,
)
from meshwright.plan.time.report import TERMS, TimeReport
from meshwright.plan.time.step import timeline
from meshwright.plan.words import CATEGORY_WORDS, TERM_WORDS, seconds
from meshwright.report.charts import Bar, Mark, legend, stacked_bars, timeline_svg
from meshwright.report.page import bullets, page, table
from meshwright.spec.cluster import GIB

MEMORY_COLOURS: Mapping[str, str] = {
    **{str(category): word for category, word in CATEGORY_WORDS.items()},
    "slack": "allocator slack",
    "outside": "outside the allocator",
}
# The optimizer step has the colour of the optimizer's memory.
TIME_COLOURS: Mapping[str, str] = {str(term): TERM_WORDS[term] for term in TERMS}


def plan_page(answer: Answer, *, top: int = 10, override: str | None = None) -> str:
    """The page of an answer.

    Args:
        top: layouts shown at most.
        override: config keys of the best layout, ready to paste.
    """
    rows = one_per_split(answer.fitting or answer.tight, top)
    shown = rows or list(answer.over[:top])
    question = answer.question
    return page(
        kind="meshwright plan",
        title=f"meshwright plan: {question.cluster.num_devices} x {question.cluster.device.title}",
        heading=verdict(answer),
        asked=f"{question.engine.title}, {question.cluster.num_devices} x {question.cluster.device.title},"
        f" global_batch_size {question.global_batch_size}, seq_length {question.train.seq_length}",
        sections=(
            _table(rows),
            _memory(answer, shown),
            _time(rows),
            _pipeline(rows),
            bullets("Closest misses", (f"{miss.name}: {miss.reason}" for miss in closest_misses(answer))),
            bullets("What the numbers say" if answer.best else "What would fit", advise(answer)),
            _paste(override),
            bullets("Assumed", assumptions(question)),
            bullets("Expected error", expected_errors(question)),
        ),
        footer=f"{answer.considered} layouts considered in {answer.seconds:.2f} s. Hover over a bar for its figure.",
    )


def _table(rows: Sequence[Candidate]) -> str:
    if not rows:
        return ""
    classes = {place: f"left {name}" for place, name in enumerate(COLUMNS) if name in LEFT}
    return f"<h2>Layouts</h2>{table(COLUMNS, table_rows(rows), classes, marked=(0,))}"


def _memory(answer: Answer, shown: Sequence[Candidate]) -> str:
    limit = answer.question.limit / GIB
    bars = [Bar(name=layout_words(item), parts=_memory_parts(item), total=f"{item.needed / GIB:.1f}") for item in shown]
    marks = (
        Mark(kind="tight", value=limit * FITS_UP_TO),
        Mark(kind="limit", value=limit, text=f"{limit:.1f} GiB usable"),
    )
    used = {colour for bar in bars for colour, _, value in bar.parts if value > 0}
    words = {colour: word for colour, word in MEMORY_COLOURS.items() if colour in used}
    return (
        "<h2>Memory of the worst rank at its worst moment</h2>"
        f'<p class="note">GiB per device. Dashed: {FITS_UP_TO:.0%} of the usable memory, up to which a layout fits.</p>'
        f"{legend(words)}{stacked_bars(bars, unit='GiB', marks=marks, label='memory by layout')}"
    )


def _memory_parts(candidate: Candidate) -> tuple[tuple[str, str, float], ...]:
    worst = candidate.memory.worst
    parts = [(name, CATEGORY_WORDS[name], worst.peak.parts.get(name, 0.0) / GIB) for name in CATEGORIES]
    return (
        *((str(name), word, value) for name, word, value in parts),
        ("slack", MEMORY_COLOURS["slack"], worst.slack / GIB),
        ("outside", MEMORY_COLOURS["outside"], worst.device_constant / GIB),
    )


def _time(rows: Sequence[Candidate]) -> str:
    reports = [(layout_words(item), item.time) for item in rows if item.time is not None]
    if not reports:
        return ""
    return (
        "<h2>Time of a step</h2>"
        '<p class="note">Seconds. Messages count only where compute does not hide them.</p>'
        f"{time_bars(reports)}"
    )


def time_bars(reports: Sequence[tuple[str, TimeReport]]) -> str:
    """A bar of each step's terms, in seconds, with the legend of all."""
    bars = []
    for name, report in reports:
        parts = tuple((str(term), TERM_WORDS[term], report.terms.get(term, 0.0)) for term in TERMS)
        bars.append(Bar(name=name, parts=parts, total=seconds(report.seconds)))
    used = {colour for bar in bars for colour, _, value in bar.parts if value > 0}
    words = {colour: word for colour, word in TIME_COLOURS.items() if colour in used}
    return f"{legend(words)}{stacked_bars(bars, unit='s', label='step time')}"


def _pipeline(rows: Sequence[Candidate]) -> str:
    candidate = next((row for row in rows if row.job.layout.pipeline_stage > 1), None)
    if candidate is None:
        return ""
    spans = timeline(candidate.job)
    words = {"forward": "forward", "backward": "backward with recomputation"}
    return (
        f"<h2>Pipeline of {escape(full_name(candidate))}</h2>"
        '<p class="note">Seconds from the start of the step; blank is idle. Deep pipelines show some of their stages,'
        " long steps their start.</p>"
        f'{legend(words)}<div class="scroll">{timeline_svg(spans, candidate.seconds)}</div>'
    )


def _paste(override: str | None) -> str:
    return f"<h2>To use the best, add</h2><pre>{escape(override)}</pre>" if override else ""
