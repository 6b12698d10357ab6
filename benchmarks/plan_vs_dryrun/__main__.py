"""Peak memory by the planner's closed form against the dry run, over configs drawn by a seed.

    python -m benchmarks.plan_vs_dryrun --count 100 --seed 0 --json plan_vs_dryrun.json

Prints a line for each config as it is done, then mean and worst absolute error, of all configs and by what was drawn.
Both predict the bytes of live tensors on a CUDA device (``max_memory_allocated``).
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.plan_vs_dryrun.compare import Row, dry_row, line, summary, with_plan
from benchmarks.plan_vs_dryrun.draw import Case, draw, isolated

from meshwright.train.worker import quiet_torch


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_vs_dryrun", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=36, metavar="N", help="configs to draw (default: 36)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--json", type=Path, help="file for the figures, written after each config")
    parser.add_argument("--resume", action="store_true", help="take dry runs that the --json file has from there")
    parser.add_argument("--isolated", action="store_true", help="keep attention inside documents in every config")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    args = parser.parse_args()
    if args.resume and args.json is None:
        parser.error("--resume needs --json")
    before = json.loads(args.json.read_text()) if args.resume and args.json.exists() else []
    known = {row["case"]: row for row in before}
    cases, rows = list(draw(args.count, args.seed)), []
    if args.isolated:
        cases = [isolated(case) for case in cases]
    for number, (row, case) in enumerate(zip(dry_rows(cases, known, args.jobs), cases, strict=True)):
        rows.append(with_plan(row, case))
        print(f"{number:3} {line(rows[-1])}", flush=True)
        if args.json:
            still_known = [known[later.text] for later in cases[number + 1 :] if later.text in known]
            args.json.write_text(json.dumps(rows + still_known, indent=1) + "\n")
    print("\n".join(summary(rows)))
    return 0


def dry_rows(cases: list[Case], known: dict[str, Row], jobs: int) -> Iterator[Row]:
    """The dry run's half of every case, in order; those in ``known`` are taken from there."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=quiet_torch) as pool:
        started = [None if case.text in known else pool.submit(dry_row, case) for case in cases]
        for case, future in zip(cases, started, strict=True):
            yield known[case.text] if future is None else future.result()


if __name__ == "__main__":
    raise SystemExit(main())
