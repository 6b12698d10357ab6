"""The planner's accuracy report.

    python -m benchmarks.published --measurements measurements.csv --subset recommended_subset.csv --json errors.json

Prints one line for each figure and writes all as JSON: per source ``memory``, ``time`` (mape, bias, p90, n), ``oom``
(accuracy, precision, recall, n), ``choice`` (mean_regret, worst_regret, n), ``skipped`` (reason: count), and the same
over all sources under ``overall``. Rates are per cent.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.published.evaluate import PARTS, evaluate
from benchmarks.published.metrics import flat, merged
from benchmarks.published.rows import read_rows


def main() -> int:
    """Run the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__.split("\n")[0])
    parser.add_argument("--measurements", type=Path, required=True, help="CSV of published rows")
    parser.add_argument("--subset", type=Path, help="CSV that lists the rows to use, and what each is good for")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--source", action="append", help="only this source; may be repeated")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this comparison; may be repeated")
    args = parser.parse_args()
    for path in (args.measurements, args.subset):
        if path is not None and not path.is_file():
            print(f"{path}: no such file", file=sys.stderr)
            return 2
    rows = [row for row in read_rows(args.measurements, args.subset) if not args.source or row.source in args.source]
    findings = evaluate(rows, args.part or PARTS)
    report = {"sources": {name: found.report() for name, found in findings.items()}}
    report["overall"] = merged(findings.values()).report()
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    for name, figures in [*report["sources"].items(), ("overall", report["overall"])]:
        for figure, values in flat(figures):
            print(f"{name:<24}{figure:<22}" + "  ".join(f"{key} {value:g}" for key, value in values.items()))
        if figures["skipped"]:
            print(f"{name:<24}{'skipped':<22}" + "; ".join(f"{why} {n}" for why, n in figures["skipped"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
