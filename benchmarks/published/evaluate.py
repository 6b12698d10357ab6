"""Predict every row and compare.

Which rows count for what: a list of recommended rows decides where one is given; without it, every row that ran and
whose configuration is complete. Special groups have figures of their own, so that the main ones stay comparable:

- nanotron: ``time`` holds rows whose tensor group stays in a node after the release's pipeline fix;
  ``time_across_nodes`` those with a tensor degree over 8.
- Megatron CI: ``memory`` holds complete rows above 1 GiB; smaller and incomplete ones are figures of their own, as are
  the ``memory_speed`` tests, the only ones of realistic size.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from benchmarks.published.jobs import job_of
from benchmarks.published.metrics import Candidate, Findings, FitCall, Pair
from benchmarks.published.rows import Row, Skip

from meshwright.plan.job import Job
from meshwright.plan.memory import predict_memory
from meshwright.plan.memory.report import MemoryReport, StageMemory
from meshwright.plan.time import predict_time
from meshwright.spec.cluster import GIB

Part = str
PARTS = ("memory", "time", "oom")
NO_TIME_REFERENCE = ("before nanotron PP fix", "not a performance reference")
NEAR = (60 * GIB, 100 * GIB)


def evaluate(rows: Iterable[Row], parts: Iterable[Part] = PARTS) -> dict[str, Findings]:
    """Findings of each source. ``parts`` leaves out what is not asked for."""
    sources: dict[str, Findings] = defaultdict(Findings)
    wanted = set(parts)
    for row in rows:
        findings = sources[row.source]
        try:
            _compare(row, findings, wanted)
        except Skip as reason:
            findings.skipped[str(reason)] += 1
    return dict(sources)


def _compare(row: Row, findings: Findings, wanted: set[Part]) -> None:
    if row.text("verified") == "recalled":
        raise Skip("figure recalled, not read")
    uses = _uses(row) & wanted
    if not uses:
        raise Skip("not recommended for any comparison")
    job = job_of(row)
    if uses & {"memory", "oom"}:
        report = predict_memory(job)
        if "memory" in uses:
            predicted, measured = counter(row, report), measured_bytes(row)
            _place(findings, _memory_slice(row, measured), findings.memory, Pair(predicted, measured))
            if "memory_speed" in row.text("model"):
                findings.slices["memory_realistic"].append(Pair(predicted, measured))
        if "oom" in uses:
            findings.fits.append(_fit_call(row, job, report))
    if "time" in uses:
        seconds, measured = predict_time(job).seconds, row.number("step_time_s")
        assert measured is not None
        name = _time_slice(row)
        _place(findings, name, findings.time, Pair(seconds, measured))
        for extra in _extra_time_slices(row):
            findings.slices[extra].append(Pair(seconds, measured))
        if name is None:
            group = tuple(row.text(key) for key in ("file", "model", "n_gpus", "gbs_seqs", "seq_len", "gpu"))
            findings.choices[group].append(Candidate(seconds, measured))


def _uses(row: Row) -> set[Part]:
    uses = set()
    ran, listed = row.text("status") == "ok", row.use
    complete = row.text("complete").startswith("yes")
    if ran and row.text("peak_mem") and ("memory" in listed if listed else complete):
        uses |= {"memory", "oom"}
    if ran and row.text("step_time_s") and ("time" in listed if listed else complete):
        uses.add("time")
    if row.text("status") == "OOM" and ("oom" in listed if listed else complete):
        uses.add("oom")
    if any(remark in row.text("notes") for remark in NO_TIME_REFERENCE):
        uses.discard("time")
    return uses


def time_rows(rows: Iterable[Row]) -> Iterator[tuple[Row, Job]]:
    """Rows that count for time, each with its job; for fitting."""
    for row in rows:
        try:
            if row.text("verified") != "recalled" and "time" in _uses(row):
                yield row, job_of(row)
        except Skip:
            continue


def measured_bytes(row: Row) -> float:
    """Published peak in bytes. A unit of 1e9 is taken where the source says so, else GiB."""
    peak, unit = row.number("peak_mem"), row.text("mem_unit")
    if peak is None:
        raise Skip("peak_mem is not stated")
    decimal = "1e9" in unit or (unit == "GB" and "flagperf" not in row.source)
    return peak * (1e9 if decimal else GIB)


def counter(row: Row, report: MemoryReport) -> float:
    """The predicted figure that the source's counter reads, of the rank that it was read on."""
    kind = row.text("mem_kind").lower()
    read: Callable[[StageMemory], float] = attrgetter(_counter_name(kind))
    if "last rank" in kind:
        return read(report.stages[-1])
    if "first pp stage" in kind or "rank-0" in kind or "rank 0" in kind:
        return read(report.stages[0])
    return max(read(stage) for stage in report.stages)


def _counter_name(kind: str) -> str:
    if "nvidia-smi" in kind or "device memory" in kind:
        return "device_total"
    return "reserved" if "reserved" in kind else "allocated"


def _fit_call(row: Row, job: Job, report: MemoryReport) -> FitCall:
    needed = report.worst.device_total
    return FitCall(
        predicted_oom=needed > job.cluster.device.memory_bytes,
        ran_out=row.text("status") == "OOM",
        near=NEAR[0] <= needed <= NEAR[1],
    )


def _place(findings: Findings, name: str | None, main: list[Pair], pair: Pair) -> None:
    (main if name is None else findings.slices[name]).append(pair)


def _memory_slice(row: Row, measured: float) -> str | None:
    if row.source != "megatron_ci_memory":
        return None
    if row.text("complete") != "yes":
        return "memory_incomplete"
    return None if measured > GIB else "memory_under_1_gib"


def _time_slice(row: Row) -> str | None:
    across = row.source == "nanotron_ultrascale" and row.whole("tp", 1) > row.whole("gpus_per_node", 8)
    return "time_across_nodes" if across else None


def _extra_time_slices(row: Row) -> list[str]:
    if row.source != "vtrain_a100":
        return []
    return ["time_single_node" if row.whole("n_gpus") <= 8 else "time_multi_node"]
