"""``meshwright checkpoint verify``: read every byte of checkpoints and compare it with their manifests."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_parser(actions: Any) -> None:
    """Add the action."""
    parser = actions.add_parser(
        "verify", help="read every byte and compare it with the sums taken while it was written"
    )
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a checkpoint, or a run or folder of checkpoints: all in it"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """0 every checkpoint is sound, 1 one is damaged or incomplete, 2 there is none."""
    from meshwright.checkpoint.locate import checkpoints_in
    from meshwright.checkpoint.manifest import verify

    folders = checkpoints_in(args.folder)
    if not folders:
        print(f"meshwright checkpoint verify: {args.folder}: no checkpoint here", file=sys.stderr)
        return 2
    damage = {folder: verify(folder) for folder in folders}
    if args.json:
        report = [{"path": str(folder), "sound": not wrong, "problems": wrong} for folder, wrong in damage.items()]
        print(json.dumps(report, indent=2))
    else:
        for folder, wrong in damage.items():
            print(f"{folder}: {'damaged' if wrong else 'sound'}")
            for line in wrong:
                print(f"  {line}")
    return 1 if any(damage.values()) else 0
