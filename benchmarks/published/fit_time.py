"""Fit the constants of the time model to published step times.

    python -m benchmarks.published.fit_time --measurements measurements.csv --subset recommended_subset.csv [--write]

For each engine and device family with enough rows: at most eight constants (`meshwright.plan.time.constants`), by
Gauss-Newton on the logarithm of predicted over measured time with Huber weights, so that a few broken runs do not
count. Prints constants, error, and the error on models that were left out of the fit one after the other. ``--write``
stores them in ``constants.json``; the defaults there are the medians over what was fitted.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.published.evaluate import time_rows
from benchmarks.published.rows import Row, read_rows

import meshwright.plan.time.constants as stored
from meshwright.plan.job import Job
from meshwright.plan.time.constants import NAMES, Constants
from meshwright.plan.time.groups import slow_answer
from meshwright.plan.time.step import predict

HUBER = 0.12
"""Log ratio beyond which a row counts linearly."""
PRIOR = 0.01
"""Pull of each constant towards its start, in rows: what rows do not determine stays where it was."""
JOINED = 0.12
"""Weight of rows of quality B against A."""
STEP = 0.02
CARRIES_OVER = 1.7
"""Most times the error of the fit that models left out may have."""
FEWEST = 10
"""Rows without which an engine keeps the defaults of the device family."""
BOUNDS: dict[str, tuple[float, float]] = {
    "matmul": (0.3, 0.95),
    "bandwidth": (0.2, 0.95),
    "attention": (0.1, 0.8),
    "launch": (1e-6, 2e-4),
    "network": (0.15, 1.15),
    "overlap": (0.02, 1.0),
    "message": (1e-6, 1e-3),
    "jitter": (0.01, 1.0),
    "stall": (0.1, 20.0),
}
Pair = tuple[Row, Job]


def main() -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published.fit_time", description=__doc__.split("\n")[0])
    parser.add_argument("--measurements", type=Path, required=True, help="CSV of published rows")
    parser.add_argument("--subset", type=Path, help="CSV that lists the rows to use")
    parser.add_argument("--only", action="append", help="engine:family to fit; may be repeated")
    parser.add_argument("--rows", type=int, default=160, help="most rows per fit, evenly drawn")
    parser.add_argument("--write", action="store_true", help="store the constants")
    args = parser.parse_args()
    groups: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for row, job in time_rows(read_rows(args.measurements, args.subset)):
        if fits(row, job):
            groups[job.engine.name, job.cluster.device.family].append((row, job))
    table = json.loads(json.dumps(stored.table()))
    for (engine, family), pairs in sorted(groups.items()):
        if len(pairs) < FEWEST or (args.only and f"{engine}:{family}" not in args.only):
            continue
        values = report(engine, family, pairs, args.rows)
        if values is None:
            table.get(engine, {}).pop(family, None)
        else:
            table.setdefault(engine, {})[family] = values
    if args.write:
        table["default"] = {"default": table["default"]["default"], **family_defaults(table)}
        path = Path(stored.__file__).with_name("constants.json")
        path.write_text(json.dumps(table, indent=1) + "\n")
    return 0


def fits(row: Row, job: Job) -> bool:
    """Whether a row is good enough to fit to: complete or nearly so, and not one whose tensor group leaves its node.

    BigScience's runs go through DeepSpeed's pipeline engine, vTrain's under the same name through Megatron's: they are
    predicted, but not fitted to.
    """
    within = job.layout.model_parallel <= job.cluster.devices_per_node
    return row.quality in ("A", "B", "") and within and row.source != "bigscience_a100"


def report(engine: str, family: str, pairs: Sequence[Pair], most: int) -> dict[str, float] | None:
    """Fit one engine and family, print what came out, and return the constants as they are stored.

    None where they do not carry over to models left out: the defaults of the family serve better.
    """
    sample = pairs[:: -(-len(pairs) // most)]
    names = free(pairs)
    # From the general defaults, and from what is stored: the better end counts.
    starts = (Constants(**stored.table()["default"]["default"]), stored.constants(engine, family))
    best = min((fit(sample, start, names) for start in starts), key=lambda end: loss_of(sample, end))
    print(f"{engine} {family}: {len(pairs)} rows, {len(sample)} in the fit")
    for name in names:
        print(f"  {name:<12}{getattr(best, name):.4g}")
    print(f"  error {describe(residuals(pairs, best))}")
    left_out = np.concatenate(list(leave_one_model_out(sample, best, names)))
    print(f"  error on models left out {describe(left_out)}", flush=True)
    if mean_error(left_out) > CARRIES_OVER * mean_error(residuals(sample, best)):
        print("  not stored: no constants for models that were not seen")
        return None
    return {name: float(f"{getattr(best, name):.4g}") for name in names}


def free(pairs: Sequence[Pair]) -> list[str]:
    """Constants that the rows can tell anything about."""
    names = set(NAMES)
    if all(job.attention != "flash" for _, job in pairs):
        names.discard("attention")
    if not any(job.overlap_gradients and job.layout.zero_ranks > 1 for _, job in pairs):
        names.discard("overlap")
    if not any(job.layout.model_parallel * job.layout.pipeline_stage > 1 for _, job in pairs):
        names.discard("message")
    if not any(job.layout.model_parallel > 1 for _, job in pairs) or any(slow_answer(job.cluster) for _, job in pairs):
        # Where networks stall, that is what ranks wait for: eight constants are enough.
        names.discard("jitter")
    if not any(slow_answer(job.cluster) for _, job in pairs):
        names.discard("stall")
    return [name for name in NAMES if name in names]


def loss_of(pairs: Sequence[Pair], values: Constants) -> float:
    """Weighted loss without the prior."""
    return huber(residuals(pairs, values), weights_of(pairs))


def weights_of(pairs: Sequence[Pair]) -> np.ndarray:
    """Weight of each row: the rows of a source inside one node, and those across nodes, count by the square root of
    their number, so that the many do not drown the few; a row whose settings were joined from elsewhere by a part."""
    kinds = [(row.source, job.cluster.num_nodes > 1) for row, job in pairs]
    counts = Counter(kinds)
    weights = np.array(
        [
            counts[kind] ** -0.5 * (JOINED if row.quality == "B" else 1)
            for kind, (row, _) in zip(kinds, pairs, strict=True)
        ]
    )
    return weights * len(pairs) / weights.sum()


def residuals(pairs: Sequence[Pair], values: Constants) -> np.ndarray:
    """Log of predicted over measured seconds."""
    return np.array([np.log(predict(job, values).seconds / float(row.text("step_time_s"))) for row, job in pairs])


def fit(pairs: Sequence[Pair], start: Constants, names: Sequence[str], rounds: int = 20) -> Constants:
    """Gauss-Newton with Huber weights and Levenberg damping, in the logarithm of the constants."""
    origin = np.log([getattr(start, name) for name in names])

    def of(point: np.ndarray) -> Constants:
        return replace(start, **{name: float(np.exp(value)) for name, value in zip(names, point, strict=True)})

    point, damping, share = bounded(origin, names), 1e-2, weights_of(pairs)
    current = residuals(pairs, of(point))
    loss = huber(current, share) + pull(point, origin)
    for _ in range(rounds):
        slopes = np.stack(
            [(residuals(pairs, of(point + STEP * unit)) - current) / STEP for unit in np.eye(len(names))], 1
        )
        weights = share * np.minimum(1.0, HUBER / np.maximum(np.abs(current), 1e-9))
        normal = slopes.T @ (weights[:, None] * slopes) + PRIOR * np.eye(len(names))
        gradient = slopes.T @ (weights * current) + PRIOR * (point - origin)
        before = loss
        for _ in range(6):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial = bounded(point + np.clip(step, -0.7, 0.7), names)
            after = residuals(pairs, of(trial))
            trial_loss = huber(after, share) + pull(trial, origin)
            if trial_loss < loss:
                point, current, loss, damping = trial, after, trial_loss, damping / 4
                break
            damping *= 5
        if before - loss < 1e-4 * before:
            break
    return of(point)


def bounded(point: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """A point moved inside the bounds of its constants."""
    low, high = (np.log([BOUNDS[name][side] for name in names]) for side in (0, 1))
    return np.clip(point, low, high)


def huber(errors: np.ndarray, weights: np.ndarray) -> float:
    """Weighted sum of Huber's loss."""
    size = np.abs(errors)
    return float((weights * np.where(size < HUBER, size**2 / 2, HUBER * (size - HUBER / 2))).sum())


def pull(point: np.ndarray, origin: np.ndarray) -> float:
    """The prior's part of the loss."""
    return float(PRIOR * ((point - origin) ** 2).sum() / 2)


def family_defaults(table: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians over the engines that were fitted on each family, for engines that were not."""
    fitted: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for engine, families in table.items():
        for family, values in families.items() if engine != "default" else ():
            for name, value in values.items():
                fitted[family][name].append(value)
    return {family: {name: median(found) for name, found in names.items()} for family, names in fitted.items()}


def leave_one_model_out(
    pairs: Sequence[Pair], best: Constants, names: Sequence[str], folds: int = 5
) -> Iterator[np.ndarray]:
    """Errors on models that a fit has not seen; models are dealt into a few folds."""
    models = sorted({row.text("model") for row, _ in pairs})
    if len(models) < 2:
        return
    for fold in range(min(folds, len(models))):
        held = set(models[fold::folds])
        seen = [pair for pair in pairs if pair[0].text("model") not in held]
        yield residuals([pair for pair in pairs if pair[0].text("model") in held], fit(seen, best, names, 3))


def mean_error(errors: np.ndarray) -> float:
    """Mean absolute relative error."""
    return float(np.abs(np.exp(errors) - 1).mean())


def describe(errors: np.ndarray) -> str:
    """Mean absolute and mean relative error, and its 90th percentile, in per cent."""
    if not len(errors):
        return "unknown: one model only"
    relative = 100 * (np.exp(errors) - 1)
    size = np.sort(np.abs(relative))
    return f"mape {size.mean():.1f} %, bias {relative.mean():+.1f} %, p90 {size[int(0.9 * (len(size) - 1))]:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
