"""One case by both predictions, and what a table of cases comes to."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.plan_vs_dryrun.draw import Case

from meshwright.dryrun.analysis import Peak, step_memory
from meshwright.dryrun.execute import execute
from meshwright.dryrun.target import target
from meshwright.plan.engines import engine
from meshwright.plan.from_run import job_of
from meshwright.plan.memory import predict_memory
from meshwright.plan.memory.report import StageMemory
from meshwright.spec.catalogue import device_cluster

GIB = 2**30
HARDWARE = "h100"
Row = dict[str, Any]
"""A case as JSON: ``dryrun`` and ``plan`` in bytes, ``*_moment`` and ``*_parts`` of each peak, ``error_pct``."""


def dry_peak(case: Case) -> Peak:
    """Peak of live tensors of the first step by the dry run; later steps need the same.

    Every layer and micro-batch is executed: that takes no longer than the fast mode's small runs without a replay of
    the allocator, and leaves no doubt which of the two predictions is wrong.
    """
    cluster = device_cluster(HARDWARE, case.layout.world_size)
    on = target("cuda", cluster.device.family)
    return step_memory(execute(case.model, case.layout, case.train, case.rank, on=on, steps=1).tape).peak


def planned_memory(case: Case) -> StageMemory:
    """The closed form's prediction for the case's rank."""
    cluster = device_cluster(HARDWARE, case.layout.world_size)
    job = job_of(case.model, case.layout, case.train, cluster=cluster, profile=engine("meshwright"))
    return predict_memory(job).stages[case.stage]


def dry_row(case: Case) -> Row:
    """The dry run's half of a row."""
    started = time.process_time()
    peak = dry_peak(case)
    return {
        "case": case.text,
        "schedule": case.layout.pipeline_schedule if case.layout.pipeline_stage > 1 else "no pipeline",
        "zero_stage": str(case.layout.zero_stage),
        "recompute": kind_of(case),
        "amp_level": case.train.precision.amp_level,
        "model": case.name,
        "dryrun": peak.bytes,
        "dryrun_moment": f"{peak.moment.phase} {peak.moment.module}",
        "dryrun_parts": dict(peak.categories),
        "cpu_seconds": time.process_time() - started,
    }


def with_plan(row: Row, case: Case) -> Row:
    """A row whole."""
    planned = planned_memory(case)
    return {
        **row,
        "plan": planned.allocated,
        "error_pct": 100 * (planned.allocated / row["dryrun"] - 1),
        "plan_moment": planned.peak.name,
        "plan_parts": dict(planned.peak.parts),
    }


def kind_of(case: Case) -> str:
    """Kind of recomputation: none, all layers, some layers, or operators."""
    recompute = case.train.recompute
    if isinstance(recompute.layers, tuple):
        return "half of the layers"
    return "operators" if recompute.select else recompute.layers


def line(row: Row) -> str:
    """One case as text."""
    return (
        f"{row['error_pct']:+7.2f} %  plan {row['plan'] / GIB:7.2f} ({row['plan_moment']})  "
        f"dry run {row['dryrun'] / GIB:7.2f} GiB ({row['dryrun_moment']})  {row['case']}"
    )


def summary(rows: list[Row]) -> list[str]:
    """Markdown: errors of all rows, and by what was drawn; and the worst row."""
    groups: Mapping[str, Callable[[Row], str]] = {
        "": lambda row: "all",
        "model": lambda row: row["model"],
        "schedule": lambda row: row["schedule"],
        "zero_stage": lambda row: row["zero_stage"],
        "recompute": lambda row: row["recompute"],
        "amp_level": lambda row: row["amp_level"],
    }
    lines = ["| configs | number | mean error, % | worst, % |", "|---|---|---|---|"]
    for name, key in groups.items():
        found = defaultdict(list)
        for row in rows:
            found[key(row)].append(abs(row["error_pct"]))
        lines += [
            f"| {f'{name} {value}'.strip()} | {len(errors)} | {sum(errors) / len(errors):.2f} | {max(errors):.2f} |"
            for value, errors in sorted(found.items())
        ]
    worst = max(rows, key=lambda row: abs(row["error_pct"]))
    return [*lines, "", f"worst: {line(worst)}"]
