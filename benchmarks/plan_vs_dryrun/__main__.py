"""Peak memory by the planner's closed form against the dry run, over configs drawn by a seed.

    python -m benchmarks.plan_vs_dryrun --count 100 --seed 0 --json plan_vs_dryrun.json

Prints a line for each config as it is done, then the mean absolute error and the worst. Both predict the bytes of live
tensors on a CUDA device (``max_memory_allocated``).
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.plan_vs_dryrun.draw import Case, draw

from meshwright.dryrun.run import dry_run
from meshwright.plan.engines import engine
from meshwright.plan.from_run import job_of
from meshwright.plan.memory import predict_memory
from meshwright.spec.catalogue import device_cluster
from meshwright.train.worker import quiet_torch

GIB = 2**30
HARDWARE = "h100"


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_vs_dryrun", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=36, metavar="N", help="configs to draw (default: 36)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    quiet_torch()
    rows = []
    for number, case in enumerate(draw(args.count, args.seed)):
        row = compare(case)
        rows.append(row)
        print(f"{number:3} {line(row)}", flush=True)
    print("\n".join(summary(rows)))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def compare(case: Case) -> dict[str, Any]:
    """Both predictions of one case, in bytes."""
    started = time.perf_counter()
    cluster = device_cluster(HARDWARE, case.layout.world_size)
    ran = dry_run((case.model, case.layout, case.train), case.rank, family=cluster.device.family, fast=True)
    job = job_of(case.model, case.layout, case.train, cluster=cluster, profile=engine("meshwright"))
    planned = predict_memory(job).stages[ran.at.pipeline]
    return {
        "case": case.text,
        "dryrun": ran.allocated,
        "plan": planned.allocated,
        "error_pct": 100 * (planned.allocated / ran.allocated - 1),
        "dryrun_moment": f"{ran.memory.peak.moment.phase} {ran.memory.peak.moment.module}",
        "plan_moment": planned.peak.name,
        "dryrun_parts": dict(ran.memory.peak.categories),
        "plan_parts": dict(planned.peak.parts),
        "seconds": time.perf_counter() - started,
    }


def line(row: dict[str, Any]) -> str:
    """One case as text."""
    return (
        f"{row['error_pct']:+7.2f} %  plan {row['plan'] / GIB:7.2f} ({row['plan_moment']})  "
        f"dry run {row['dryrun'] / GIB:7.2f} GiB ({row['dryrun_moment']})  {row['case']}"
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Mean and worst error."""
    errors = [abs(row["error_pct"]) for row in rows]
    worst = max(rows, key=lambda row: abs(row["error_pct"]))
    return [
        f"{len(rows)} configs: mean absolute error {sum(errors) / len(errors):.2f} %, worst {max(errors):.2f} %",
        f"worst: {line(worst)}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
