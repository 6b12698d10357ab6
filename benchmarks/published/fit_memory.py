"""Fit what the caching allocator and the driver take beyond live tensors, and say how well it carries over.

``python -m benchmarks.published.fit_memory --measurements CSV --subset FILE [--write]`` prints at most four constants
for each engine and device family, with the error on all rows and on the rows of a model that was left out of the fit.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.published.evaluate import NEAR, measured_bytes
from benchmarks.published.jobs import job_of
from benchmarks.published.rows import Row, Skip, read_rows
from numpy.typing import NDArray

import meshwright.plan.memory.constants as stored
from meshwright.plan.job import Job
from meshwright.plan.memory.allocator import passing, streams
from meshwright.plan.memory.fsdp_moments import moments as fsdp_moments
from meshwright.plan.memory.fsdp_stage import Stage as FsdpStage
from meshwright.plan.memory.fsdp_stage import stages_of as fsdp_stages_of
from meshwright.plan.memory.megatron_moments import fixed_of, moments
from meshwright.plan.memory.megatron_slack import backlog
from meshwright.plan.memory.megatron_stage import Stage, stages_of
from meshwright.spec.cluster import GIB

Array = NDArray[np.float64]
NAMES = ("gaps", "stream_gaps", "backlog", "context")
GRID = {
    "gaps": np.arange(0.0, 0.61, 0.02),
    "stream_gaps": np.arange(0.0, 0.61, 0.02),
    "backlog": np.arange(0.0, 1.01, 0.1),
    "context": np.arange(0.0, 10.1, 0.5),
}
NEAR_WEIGHT = 0.1
"""How much a share of wrong fit calls near the limit counts against the same share of error in bytes."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A row: live bytes, activations with logits, and backlog of each stage in GiB, and what was measured.

    Attributes:
        measured: published peak in GiB; 0 where the run did not fit.
        stage: number of the stage whose counter was read; None is the largest.
        streams: activations travel on streams of tensor parallelism.
        whole_device: the counter includes what lies outside the allocator.
    """

    model: str
    stages: Array
    limit: float
    measured: float
    stage: int | None
    streams: bool
    whole_device: bool
    ran_out: bool


def predicted(samples: Sequence[Sample], values: Sequence[float], reserve: float) -> tuple[Array, Array]:
    """Counter as published, and bytes that decide whether a run fits, GiB, as `megatron_slack` has them."""
    gaps, stream_gaps, waiting, context = values
    counters, needs = [], []
    for sample in samples:
        share = gaps + stream_gaps * sample.streams
        firm = sample.stages[:, 0] + sample.stages[:, 1] * share + reserve
        free = np.maximum(0.0, sample.limit - context - firm)
        whole = firm + np.minimum(waiting * sample.stages[:, 2], free)
        counter = whole + (context if sample.whole_device else 0.0)
        counters.append(counter.max() if sample.stage is None else counter[sample.stage])
        needs.append(whole.max() + context)
    return np.array(counters), np.array(needs)


def objective(samples: Sequence[Sample], values: Sequence[float], reserve: float) -> float:
    """Mean relative error of the bytes, and wrong fit calls near the limit."""
    counters, needs = predicted(samples, values, reserve)
    measured = np.array([sample.measured for sample in samples])
    read = measured > 0
    error = float(np.mean(np.abs(counters[read] / measured[read] - 1)))
    ran_out = np.array([sample.ran_out for sample in samples])
    if not ran_out.any():
        return error
    limits = np.array([sample.limit for sample in samples])
    near = (needs >= NEAR[0] / GIB) & (needs <= NEAR[1] / GIB)
    wrong = float(np.mean((needs > limits + 1e-6)[near] != ran_out[near])) if near.any() else 0.0
    return error + NEAR_WEIGHT * wrong


def fit(samples: Sequence[Sample], reserve: float, free: Sequence[str]) -> list[float]:
    """Constants by descent along one after the other; those that are not free stay 0."""
    values = [0.1 if name in free else 0.0 for name in NAMES]
    for _ in range(4):
        before = list(values)
        for index, name in enumerate(NAMES):
            if name in free:
                values[index] = min(
                    GRID[name],
                    key=lambda value: objective(samples, [*values[:index], value, *values[index + 1 :]], reserve),
                )
        if values == before:
            break
    return [round(float(value), 3) for value in values]


def sample_of(row: Row, job: Job, reserved: float | None) -> Sample:
    """The features of a row."""
    kind = row.text("mem_kind").lower()
    ran_out = row.text("status") == "OOM"
    measured = 0.0 if ran_out else reserved or measured_bytes(row) / GIB
    return Sample(
        model=row.text("model"),
        stages=np.array(_features(job)),
        limit=job.cluster.device.memory_bytes / GIB,
        measured=measured,
        streams=job.layout.model_parallel > 1,
        stage=0 if "first pp stage" in kind else None,
        whole_device="nvidia-smi" in kind,
        ran_out=ran_out,
    )


def groups(rows: Iterable[Row]) -> dict[tuple[str, str], list[Sample]]:
    """Samples by engine and device family, of rows whose counter shows what the allocator reserves."""
    found: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for row in rows:
        reserved = re.search(r"real_reserved_gib=([\d.]+)", row.text("notes"))
        counted = reserved or re.search("reserved|nvidia-smi", row.text("mem_kind").lower())
        if not ((counted and row.text("peak_mem")) or row.text("status") == "OOM"):
            continue
        if row.text("status") not in ("ok", "OOM") or not row.text("complete").startswith("yes"):
            continue
        try:
            job = job_of(row)
        except Skip:
            continue
        key = (job.engine.name, job.cluster.device.family)
        found[key].append(sample_of(row, job, float(reserved[1]) if reserved else None))
    return {key: samples for key, samples in found.items() if sum(sample.measured > 0 for sample in samples) >= 10}


def _features(job: Job) -> list[tuple[float, float, float]]:
    if job.engine.family == "fsdp":
        return [_fsdp_features(stage) for stage in fsdp_stages_of(job)]
    return [_megatron_features(job, stage) for stage in stages_of(job)]


def _fsdp_features(stage: FsdpStage) -> tuple[float, float, float]:
    peak = max(fsdp_moments(stage), key=lambda moment: moment.total)
    return (peak.total + streams(stage, peak)) / GIB, passing(peak) / GIB, 0.0


def _megatron_features(job: Job, stage: Stage) -> tuple[float, float, float]:
    peak = max(moments(job, stage, fixed_of(job)), key=lambda moment: moment.total)
    passing = peak.parts.get("activations", 0.0) + peak.parts.get("logits", 0.0)
    return peak.total / GIB, passing / GIB, backlog(job, stage) / GIB


def _error(samples: Sequence[Sample], values: Sequence[float], reserve: float) -> float:
    read = [sample for sample in samples if sample.measured > 0]
    counters, _ = predicted(read, values, reserve)
    return float(np.mean(np.abs(counters / np.array([sample.measured for sample in read]) - 1))) * 100


def _left_out(samples: Sequence[Sample], reserve: float, free: Sequence[str]) -> float:
    """Error on the rows of each model with constants that were fitted without them, over all rows."""
    errors, counts = [], []
    for model in sorted({sample.model for sample in samples if sample.measured > 0}):
        others = [sample for sample in samples if sample.model != model]
        mine = [sample for sample in samples if sample.model == model and sample.measured > 0]
        if any(sample.measured > 0 for sample in others):
            errors.append(_error(mine, fit(others, reserve, free), reserve))
            counts.append(len(mine))
    return float(np.average(errors, weights=counts)) if errors else float("nan")


def main() -> None:
    """Fit, print and, when asked, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=Path, required=True)
    parser.add_argument("--subset", type=Path)
    parser.add_argument("--write", action="store_true", help="store the constants in the planner")
    given = parser.parse_args()
    table = stored.table()
    for (engine, family), samples in groups(read_rows(given.measurements, given.subset)).items():
        stored_before = table.get(engine, {}).get(family, {})
        reserve = stored.constants(engine, family).reserve
        outside = any(sample.ran_out or sample.whole_device for sample in samples)
        free = [name for name in NAMES if name != "context" or outside]
        free = [name for name in free if name != "backlog" or engine == "nanotron"]
        if len({sample.streams for sample in samples}) == 1:
            free.remove("stream_gaps")
        values = fit(samples, reserve, free)
        kept = {name: value for name, value in zip(NAMES, values, strict=True) if name in free}
        kept |= {name: value for name, value in stored_before.items() if name == "reserve"}
        error, apart = _error(samples, values, reserve), _left_out(samples, reserve, free)
        print(f"{engine} on {family}: {kept}; {len(samples)} rows, error {error:.2f} %, model left out {apart:.2f} %")
        # Families without rows of their own read what the engine's last family showed.
        table.setdefault(engine, {}).update({family: kept, "default": kept})
    if given.write:
        Path(stored.__file__).with_name("constants.json").write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
