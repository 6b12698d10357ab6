"""The whole sum for one layout: memory by category and moment, time by term, messages by axis."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.plan.memory.report import CATEGORIES, Moment, StageMemory
from meshwright.plan.question import Question
from meshwright.plan.search import Candidate, predict
from meshwright.plan.text import full_name
from meshwright.plan.time.report import TERMS
from meshwright.plan.words import CATEGORY_WORDS, TERM_WORDS, gib, seconds, size
from meshwright.spec.batch import equation
from meshwright.spec.cluster import GIB
from meshwright.spec.layers import describe_layer_map, layer_map

FUSIONS = (1, 2, 4, 8)
MOST_STAGES = 4
SHOWN = 1e-6
"""Share of a step from which a term of its time is told; less is rounding."""


def explain_text(question: Question, candidate: Candidate) -> str:
    """Every part of a layout's memory and time, with units; the parts add up to the totals."""
    job = candidate.job
    data = job.layout.data_parallel
    lines = [
        f"{full_name(candidate)} on {question.cluster.num_devices} x {question.cluster.device.title}",
        equation(job.batch, data, job.seq_length),
        *_layers(question, candidate),
        "",
        f"memory, GiB per device ({gib(candidate.limit)} usable: {candidate.fit}); worst: stage"
        f" {candidate.memory.worst.stage} at {candidate.memory.worst.peak.name}",
        *_memory(candidate),
        "",
        *time_lines(candidate),
        "",
        *_traffic(candidate),
        "",
        *_fusion(question, candidate),
    ]
    return "\n".join(lines)


def _layers(question: Question, candidate: Candidate) -> list[str]:
    layout = candidate.job.layout
    if layout.pipeline_stage == 1:
        return []
    return [describe_layer_map(layer_map(question.model.num_layers, layout))]


def _memory(candidate: Candidate) -> Iterator[str]:
    heads = [CATEGORY_WORDS[category] for category in CATEGORIES]
    rows: list[list[str]] = []
    shown = _shown(candidate.memory.stages, candidate.memory.worst)
    for stage in shown:
        rows += [_moment_row(stage, moment) for moment in stage.moments]
    width = max(len(row[0]) for row in rows)
    columns = [max(len(head), 6) for head in heads]
    yield f"  {'':{width}}  " + "  ".join(head.rjust(w) for head, w in zip(heads, columns, strict=True)) + "   total"
    for row in rows:
        cells = "  ".join(cell.rjust(w) for cell, w in zip(row[1:-1], columns, strict=True))
        yield f"  {row[0]:{width}}  {cells}  {row[-1]:>6}"
    if len(shown) < len(candidate.memory.stages):
        yield f"  ({len(candidate.memory.stages) - len(shown)} stages in between left out)"
    for stage in shown:
        yield (
            f"  stage {stage.stage}: peak {stage.allocated / GIB:.2f} + allocator slack {stage.slack / GIB:.2f}"
            f" + outside the allocator {stage.device_constant / GIB:.2f} = {stage.device_total / GIB:.2f}"
        )


def _shown(stages: Sequence[StageMemory], worst: StageMemory) -> list[StageMemory]:
    """All stages of a short pipeline; of a long one the ends and the worst."""
    if len(stages) <= MOST_STAGES:
        return list(stages)
    return [stage for stage in stages if stage in (stages[0], stages[1], worst, stages[-1])]


def _moment_row(stage: StageMemory, moment: Moment) -> list[str]:
    mark = "*" if moment is stage.peak else " "
    parts = [f"{moment.parts.get(category, 0.0) / GIB:.2f}" for category in CATEGORIES]
    return [f"{mark}stage {stage.stage}, {moment.name}", *parts, f"{moment.total / GIB:.2f}"]


def time_lines(candidate: Candidate) -> Iterator[str]:
    """Seconds of a step with its terms, which add up to it."""
    report = candidate.time
    if report is None:
        return
    yield (
        f"time of a step: {seconds(report.seconds)}, {report.tokens_per_second:,.0f} tokens/s, MFU {report.mfu:.1%}"
        " (6 N per token, causal attention, no recomputation)"
    )
    for term in TERMS:
        value = report.terms.get(term, 0.0)
        if value > SHOWN * report.seconds:
            yield f"  {TERM_WORDS[term]:<24}{seconds(value):>9}  {value / report.seconds:6.1%}"


def _traffic(candidate: Candidate) -> Iterator[str]:
    if candidate.time is None:
        return
    if not candidate.time.traffic:
        yield "no messages: one device"
        return
    yield "messages of the busiest rank in a step"
    rows = [("axis", "collective", "bytes", "messages", "link", "time", "not hidden")]
    rows += [
        (
            item.axis,
            item.collective,
            size(item.bytes),
            str(item.messages),
            item.link,
            seconds(item.seconds),
            seconds(item.exposed),
        )
        for item in candidate.time.traffic
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _fusion(question: Question, candidate: Candidate) -> Iterator[str]:
    """What ``comm_fusion`` does to memory, messages and time."""
    job = candidate.job
    if job.layout.zero_ranks == 1 or question.engine.family != "fsdp":
        return
    yield "comm_fusion: layers whose data-parallel messages travel as one"
    layers = question.model.num_layers // job.layout.pipeline_stage
    for number in FUSIONS:
        if number > layers:
            continue
        other = predict(question, replace(job, layout=replace(job.layout, comm_fusion=number)))
        assert other.time is not None
        data = [item for item in other.time.traffic if item.axis == "data"]
        mark = "*" if number == job.layout.comm_fusion else " "
        yield (
            f" {mark}{number}: {gib(other.needed)}, {sum(item.messages for item in data)} messages of"
            f" {size(sum(item.bytes for item in data))} in all, {seconds(sum(item.exposed for item in data))} not"
            f" hidden, {seconds(other.seconds)}/step"
        )
