"""Published peaks of torchtitan beside dry runs of the nearest run of Meshwright.

    python -m benchmarks.dryrun_published [--only TEXT] [--json FILE] [--page docs/dryrun-published.md]

Each row is run through ``meshwright dryrun``: as it is, then with what torchtitan did otherwise applied one difference
after the other, so that every step between our figure and the published one has a name and a size.
"""

import argparse
import io
import json
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks.dryrun_published.differences import Difference
from benchmarks.dryrun_published.page import line, page
from benchmarks.dryrun_published.rows import ROWS, Row

from meshwright.cli import main as meshwright

HARDWARE = "h100-96g"


def main() -> int:
    """Run the rows and print a line for each step of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dryrun_published", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the figures, in bytes")
    parser.add_argument("--page", type=Path, metavar="FILE", help="Markdown page to write")
    args = parser.parse_args()
    results = [measured(row) for row in ROWS if args.only in row.name]
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if args.page:
        args.page.write_text(page(results), encoding="utf-8")
    return 0


def measured(row: Row) -> dict[str, Any]:
    """Every step from our run to the published one."""
    steps = []
    for count in range(len(row.differences) + 1):
        applied = row.differences[:count]
        report = dry_run(row.path, row.world_size, applied)
        steps.append({"applied": applied[-1].name if applied else None, **report})
        print(line(row.name, steps, row.published), flush=True)
    return {"name": row.name, "build": row.build, "published_gib": row.published, "steps": steps}


def dry_run(config: Path, world_size: int, applied: Sequence[Difference], *words: str) -> dict[str, Any]:
    """What ``meshwright dryrun --json`` says of rank 0."""
    out = io.StringIO()
    with ExitStack() as stack:
        for difference in applied:
            stack.enter_context(difference.applied())
        stack.enter_context(redirect_stdout(out))
        where = ["--world-size", str(world_size), "--hardware", HARDWARE]
        meshwright(["dryrun", str(config), *where, "--json", *words])
    return json.loads(out.getvalue())["ranks"][0]


if __name__ == "__main__":
    raise SystemExit(main())
