"""Writes what ``meshwright plan`` tells about its own error: figures by engine and device family.

    python -m benchmarks.published.accuracy --measurements measurements.csv --subset recommended_subset.csv

The file is src/meshwright/plan/accuracy.json: {engine: {device family: {"memory" or "time": {mape, bias, p90, n}}}},
runs with adapters under ``<engine> adapters``. Only the main figures of each source count, as in the accuracy report;
a figure of fewer than `FEWEST` rows is left out.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.published.evaluate import evaluate
from benchmarks.published.jobs import job_of
from benchmarks.published.metrics import errors, merged
from benchmarks.published.rows import Row, Skip, read_rows

TARGET = Path(__file__).parents[2] / "src" / "meshwright" / "plan" / "accuracy.json"
FEWEST = 5


def by_kind(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by the engine and device family that they are predicted with."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        try:
            job = job_of(row)
        except Skip:
            continue
        name = job.engine.name if job.adapter is None else f"{job.engine.name} adapters"
        groups[name, job.cluster.device.family].append(row)
    return groups


def accuracy(rows: list[Row]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """The figures by engine and device family."""
    table: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for (name, family), group in sorted(by_kind(rows).items()):
        found = merged(evaluate(group).values())
        figures = {what: errors(pairs) for what, pairs in (("memory", found.memory), ("time", found.time)) if pairs}
        kept = {what: values for what, values in figures.items() if values["n"] >= FEWEST}
        if kept:
            table.setdefault(name, {})[family] = kept
    return table


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published.accuracy", description=__doc__.split("\n")[0])
    parser.add_argument("--measurements", type=Path, required=True, help="CSV of published rows")
    parser.add_argument("--subset", type=Path, help="CSV that lists the rows to use, and what each is good for")
    args = parser.parse_args()
    for path in (args.measurements, args.subset):
        if path is not None and not path.is_file():
            print(f"{path}: no such file", file=sys.stderr)
            return 2
    table = accuracy(list(read_rows(args.measurements, args.subset)))
    TARGET.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    for name, families in table.items():
        for family, figures in families.items():
            for what, values in figures.items():
                print(
                    f"{name:<20}{family:<12}{what:<8}" + "  ".join(f"{key} {value:g}" for key, value in values.items())
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
