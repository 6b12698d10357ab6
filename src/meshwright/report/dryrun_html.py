"""A dry run as one static HTML page: stages, and for each rank its memory over time, what fills it, its messages."""

from collections.abc import Iterator, Sequence
from html import escape

from meshwright.dryrun.analysis import Peak
from meshwright.dryrun.findings import Findings, RankFound
from meshwright.dryrun.tables import Row, Unit, by_phase, by_stage, messages, modules, moment, stages, unit_for
from meshwright.dryrun.text import change_notes, change_rows, headline, rank_name, setting
from meshwright.dryrun.timeline import Timeline, timeline
from meshwright.plan.explain import time_lines
from meshwright.report.charts import Bar, Mark, legend, stacked_bars
from meshwright.report.memory_chart import COLOURS, FAR, memory_chart, usable_words
from meshwright.report.page import page, table
from meshwright.report.plan_html import time_bars

ALL_POINTS, MOST_POINTS, LEAST_POINTS = 6000, 1200, 300
"""Points of all curves together, of one, and of one where there are very many stages."""
ESTIMATED = (
    "No curve: --fast puts a step together from small runs, and none of them is the step itself."
    " Without --fast the whole step is run and drawn."
)


def dryrun_page(findings: Findings) -> str:
    """The page of a dry run."""
    ranks = findings.ranks
    unit = unit_for(findings.worst.result.allocated)
    points = max(min(MOST_POINTS, ALL_POINTS // len(ranks)), LEAST_POINTS)
    sections = [_stages(findings, unit)] if len(ranks) > 1 else []
    sections += [_rank(findings, found, unit, points) for found in ranks]
    sections += [_changes(findings, unit), _time(findings)]
    took = sum(found.result.seconds for found in ranks)
    return page(
        kind="meshwright dryrun",
        title=f"meshwright dryrun: {findings.cluster.num_devices} x {findings.cluster.device.title}",
        heading=headline(findings),
        asked="; ".join(setting(findings)),
        sections=sections,
        footer=f"Running these ranks took {took:.1f} s here. Hover over a chart for its figures.",
    )


def _stages(findings: Findings, unit: Unit) -> str:
    peaks = [(f"stage {found.result.at.pipeline}", found.result.memory.peak) for found in findings.ranks]
    rows = stages(findings.ranks, unit)
    classes = {len(rows[0]) - 1: "left why"}
    bars = _bars(peaks, unit, _usable(findings, findings.worst), "memory by stage")
    return (
        f"<section><h2>Stages at their peaks</h2>{bars}"
        f"{_table(rows, classes)}"
        f"<h3>Parts, {unit.name}</h3>{_table(by_stage(findings.ranks, unit))}</section>"
    )


def _rank(findings: Findings, found: RankFound, unit: Unit, points: int) -> str:
    result = found.result
    sent = messages(result, findings.run.layout, findings.cluster.devices_per_node)
    held = [("module", unit.name), *modules(result.memory.peak, unit)]
    return "".join(
        [
            f"<section><h2>{escape(rank_name(found))}</h2>",
            f'<p class="note">{escape(found.verdict.text)}</p>' if len(findings.ranks) > 1 else "",
            _over_time(findings, found, unit, points),
            f"<h3>Parts at the worst moment of each phase, {unit.name}</h3>",
            '<p class="note">*: the peak.</p>',
            _table(by_phase(result, unit)),
            f"<h3>Modules that hold most at the peak, {unit.name}</h3>",
            '<p class="note">Each without the modules inside it; the same module of all layers together.</p>',
            _table(held),
            "<h3>Messages in a step</h3>",
            _table(sent, dict.fromkeys(range(4), "left")) if sent else "<p>None: one device.</p>",
            f"<p>Matrix products and attention: {result.traffic.flops / 1e12:.2f} TFLOP in a step, recomputation"
            " included.</p></section>",
        ]
    )


def _changes(findings: Findings, unit: Unit) -> str:
    if not findings.changes.rows:
        return ""
    notes = ". ".join(change_notes(findings.changes, unit))
    return (
        f"<section><h2>What one change would save on the worst stage, {unit.name}</h2>"
        f'<p class="note">{escape(notes)}.</p>{_table(change_rows(findings.changes, unit))}</section>'
    )


def _time(findings: Findings) -> str:
    said = next(time_lines(findings.changes.computed)).removeprefix("time of a step: ")
    return (
        f'<section><h2>Time of a step</h2><p class="note">{escape(said)}. In closed form.</p>'
        f"{time_bars([('the whole step', findings.time)])}</section>"
    )


def _over_time(findings: Findings, found: RankFound, unit: Unit, points: int) -> str:
    result = found.result
    usable = _usable(findings, found)
    peak = f"peak {unit.named(result.allocated)}: {moment(result.memory.peak)}"
    if result.execution is None:
        bars = _bars(list(result.memory.phases.items()), unit, usable, "memory by phase")
        return f"<p>{escape(peak)}</p><p>{escape(ESTIMATED)}</p><h3>Memory at the worst moment of each phase</h3>{bars}"
    whole = timeline(result.execution.tape, cached=result.reserved is not None)
    line = whole.thinned(points)
    chart = memory_chart(line, unit=unit, usable=usable, peak=peak)
    return f'<h3>Memory over one step, {unit.name}</h3><p class="note">{escape(_how_drawn(whole, line))}</p>{chart}'


def _how_drawn(whole: Timeline, line: Timeline) -> str:
    drawn = "."
    if line is not whole:
        drawn = f": of every {-(-2 * whole.length // len(line.points))} the highest and the lowest."
    return (
        f"A step with all that stays from those before it: {whole.length} allocations and releases, one beside the"
        f" other, not to scale in time. {len(line.points)} of them are drawn{drawn} The strip below shows the forward"
        " and backward passes with the numbers of their micro-batches."
    )


def _usable(findings: Findings, found: RankFound) -> int:
    """Bytes of the device that the allocator can have."""
    return int(findings.cluster.device.memory_bytes) - found.verdict.outside


def _bars(peaks: Sequence[tuple[str, Peak]], unit: Unit, usable: int, label: str) -> str:
    bars = [Bar(name=name, parts=tuple(_parts(peak, unit)), total=unit.of(peak.bytes)) for name, peak in peaks]
    used = {colour for bar in bars for colour, _, _ in bar.parts}
    words = {colour: name for name, colour in COLOURS.items() if colour in used}
    near = usable <= FAR * max(peak.bytes for _, peak in peaks)
    limit = Mark(kind="limit", value=usable / unit.bytes, text=usable_words(usable))
    return f"{legend(words)}{stacked_bars(bars, unit=unit.name, marks=[limit] if near else [], label=label)}"


def _parts(peak: Peak, unit: Unit) -> Iterator[tuple[str, str, float]]:
    for name, colour in COLOURS.items():
        if size := peak.categories.get(name, 0):
            yield colour, name, size / unit.bytes


def _table(rows: Sequence[Row], classes: dict[int, str] | None = None) -> str:
    head, *body = rows
    return table(head, body, classes or {0: "left"})
