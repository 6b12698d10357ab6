"""What a change of layout in the middle of a run does to its losses (B-17): a table.

python benchmarks/resume_table.py [--json FILE]

Each row trains 10 steps on one layout, 10 on another, and 10 on the first one again, with two resumes from
checkpoints, and is held against 30 steps without a break on the first layout.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "distributed")]

CHANGES = (
    ("dp4_zero3", "dp4_zero3"),
    ("dp4_zero3", "dp4"),
    ("dp4_zero3", "dp2_zero3"),
    ("dp4_zero3", "dp2tp2_zero2_seq"),
    ("dp4_zero3", "tp2pp2"),
    ("dp4_zero3", "pp2"),
    ("dp4_zero3", "one"),
    ("dp2tp2", "dp2pp2_zero1"),
    ("tp2pp2", "dp2_zero1"),
    ("one", "dp2tp2_zero2_seq"),
)
STEPS = 30


def losses(folder: Path, layouts: list[str]) -> list[float]:
    """Losses of a run that changes its layout each time it has made its share of the steps."""
    from ranks import run_ranks
    from trainer_runs import Disturbance, InterruptedRun, by_step, ranks_of, train, write_config

    each = STEPS // len(layouts)
    for number, layout in enumerate(layouts, start=1):
        sections = {"train": {"train_steps": STEPS}, "checkpoint": {"save_checkpoint_steps": each}}
        folder.mkdir(parents=True, exist_ok=True)
        config = write_config(folder, layout, **sections)
        last = number == len(layouts)
        disturbance = None if last else Disturbance(stop_after=number * each)
        with contextlib.suppress(InterruptedRun), contextlib.redirect_stdout(io.StringIO()):
            run_ranks(train, ranks_of(layout), config, (), disturbance)
    found = by_step(folder / "out", "train/loss")
    assert list(found) == list(range(1, STEPS + 1))
    return [loss for (loss,) in found.values() if loss is not None]


def main() -> None:
    """Run every row, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    straight: dict[str, list[float]] = {}
    rows = []
    print("| saved on | continued on, then back | largest loss difference over 30 steps |\n|---|---|---|")
    for first, between in CHANGES:
        with tempfile.TemporaryDirectory() as folder:
            if first not in straight:
                straight[first] = losses(Path(folder) / "straight", [first])
            changed = losses(Path(folder) / "changed", [first, between, first])
        largest = max(abs(a - b) for a, b in zip(changed, straight[first], strict=True))
        rows.append({"first": first, "between": between, "largest_loss_difference": largest})
        print(f"| {first} | {between} | {largest:.1e} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
