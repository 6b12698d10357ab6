"""A dry run as text: the verdict first, then the stages, the worst rank in detail, what changes save, the time."""

from collections.abc import Iterator

from meshwright.dryrun.findings import Findings, RankFound
from meshwright.dryrun.levers import MOST_DRY_RUNS, Change, Changes
from meshwright.dryrun.tables import (
    Row,
    Unit,
    aligned,
    by_phase,
    by_stage,
    layers,
    messages,
    modules,
    moment,
    reserved,
    stages,
    unit_for,
)
from meshwright.dryrun.verdict import ENGINE, Verdict
from meshwright.plan.accuracy import expected_error
from meshwright.plan.engines import engine
from meshwright.plan.explain import time_lines
from meshwright.plan.text import full_name
from meshwright.plan.words import seconds
from meshwright.spec.batch import equation

OTHER_KERNELS = ("ascend", "cdna3", "cdna4")
FIT_WORDS = {"fits": "fits", "tight": "just fits", "over": "does not fit"}


def report(findings: Findings) -> list[str]:
    """The whole report."""
    worst = findings.worst
    unit = unit_for(worst.result.allocated)
    lines = [headline(findings), *setting(findings), ""]
    if len(findings.ranks) > 1:
        lines += [f"stages, {unit.name}", *aligned(stages(findings.ranks, unit), left=(6,)), ""]
        lines += [f"at the peak of each stage, {unit.name}", *aligned(by_stage(findings.ranks, unit)), ""]
    lines += [*_rank(findings, worst, unit), *_changes(findings.changes, unit), "", *_time(findings), ""]
    tried = [change.trial for change in findings.changes.rows] + [findings.changes.trial]
    runs = [rank.result for rank in findings.ranks] + [trial.result for trial in tried if trial is not None]
    return [*lines, f"dry runs took {sum(result.seconds for result in runs):.1f} s"]


def headline(findings: Findings) -> str:
    """``stage 0 worst: 57.60 GiB allocated, 66.74-71.48 GiB reserved, ... fits ...``."""
    worst = findings.worst
    result, verdict = worst.result, worst.verdict
    unit = unit_for(result.allocated)
    who = f"stage {result.at.pipeline} worst" if len(findings.ranks) > 1 else rank_name(worst)
    parts = [f"{unit.named(result.allocated)} allocated"]
    if held := reserved(result, unit):
        about = "about " if result.estimated else ""
        outside = unit_for(verdict.outside).named(verdict.outside)
        parts += [f"{about}{held} {unit.name} reserved", f"{outside} for device context and communicators"]
    return f"{who}: {', '.join(parts)}: {verdict.text}"


def rank_name(found: RankFound) -> str:
    """``rank 8, stage 1 (layers 10-19)``."""
    result = found.result
    return f"rank {result.rank}, stage {result.at.pipeline} (layers {layers(result)})"


def setting(findings: Findings) -> list[str]:
    """What was run, on what."""
    run, cluster = findings.run, findings.cluster
    result = findings.worst.result
    notices = ["fast: extrapolated from small runs; reserved is an estimate"] if result.estimated else []
    if result.target == "cuda" and cluster.device.family in OTHER_KERNELS:
        notices.append(f"kernels, workspaces and allocator are those of CUDA: {cluster.device.title} has its own")
    return [
        f"{cluster.num_devices} x {cluster.device.title}, {full_name(findings.changes.computed)}",
        equation(run.train.batch, run.layout.data_parallel, run.train.seq_length),
        *notices,
    ]


def _rank(findings: Findings, found: RankFound, unit: Unit) -> Iterator[str]:
    result = found.result
    yield f"{rank_name(found)}: peak {unit.named(result.allocated)} in {moment(result.memory.peak)}"
    if result.reserved is not None:
        native, expandable = map(unit.named, (result.reserved.native, result.reserved.expandable))
        yield f"reserved: {native} in native segments, {expandable} in expandable segments"
    yield ""
    yield f"at the worst moment of each phase, {unit.name}"
    yield from aligned(by_phase(result, unit))
    yield ""
    yield f"modules that hold most at the peak, each without the modules inside it, {unit.name}"
    yield from aligned(modules(result.memory.peak, unit))
    yield ""
    yield "messages in a step"
    sent = messages(result, findings.run.layout, findings.cluster.devices_per_node)
    yield from aligned(sent, left=range(4)) or ["  none: one device"]
    yield ""
    yield f"matrix products and attention: {result.traffic.flops / 1e12:.2f} TFLOP in a step, recomputation included"
    yield ""


def _changes(changes: Changes, unit: Unit) -> Iterator[str]:
    if not changes.rows:
        yield "no single change would save memory"
        return
    yield f"what one change would save on the worst stage, {unit.name}"
    yield from aligned(change_rows(changes, unit))
    yield from (f"  {note}" for note in change_notes(changes, unit))


def change_rows(changes: Changes, unit: Unit) -> list[Row]:
    """What single changes save, under a head."""
    tried = changes.trial is not None
    heads = ["change", "computed", "then needs", *(["dry run", "then needs"] if tried else []), "", "step time"]
    return [heads, *(_change(changes, change, unit) for change in changes.rows)]


def change_notes(changes: Changes, unit: Unit) -> list[str]:
    """What the columns of `change_rows` are held against."""
    computed = f"computed: closed form, which needs {unit.named(changes.computed.needed)} for the run as it is"
    if changes.trial is None:
        return [computed, f"--levers dry-runs the first {MOST_DRY_RUNS} as well"]
    return [computed, f"dry run: in fast mode, which needs {unit.named(changes.trial.needed)} for the run as it is"]


def _change(changes: Changes, change: Change, unit: Unit) -> Row:
    lever, trial = change.computed, change.trial
    candidate = lever.candidate
    cells = [lever.change, unit.of(lever.saves), unit.of(candidate.needed)]
    fits = FIT_WORDS[candidate.fit]
    if trial is not None and (saved := changes.saved(change)) is not None:
        cells += [unit.of(saved), unit.of(trial.needed)]
        fits = _fit(trial.verdict)
    elif changes.trial is not None:
        cells += ["-", "-"]
    return [*cells, fits, f"{'+' if lever.costs >= 0 else '-'}{seconds(abs(lever.costs))}"]


def _fit(verdict: Verdict) -> str:
    if verdict.fits:
        return FIT_WORDS["fits"]
    return FIT_WORDS["over"] if verdict.spare < 0 else "with expandable segments only"


def _time(findings: Findings) -> Iterator[str]:
    yield from time_lines(findings.changes.computed)
    error = expected_error(engine(ENGINE), findings.cluster.device.family, "time")
    if error is not None:
        yield f"  {error}"
