"""``meshwright checkpoint reshard``: the same checkpoint in the shards of another layout, made by one process."""

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(actions: Any) -> None:
    """Add the action."""
    parser = actions.add_parser("reshard", help="cut a checkpoint anew for another layout, one tensor at a time")
    parser.add_argument("source", type=Path, metavar="SRC", help="a checkpoint, or a run: its newest complete one")
    parser.add_argument("target", type=Path, metavar="DST", help="folder in which the new step-... folder is made")
    parser.add_argument("--layout", required=True, metavar="LAYOUT", help="such as tp4, dp2tp2 or 'dp2 pp2 zero1'")


def run(args: argparse.Namespace) -> int:
    """0 done, 1 the source is damaged or the disk full, 2 the request was wrong."""
    from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch
    from meshwright.checkpoint.locate import newest_in
    from meshwright.train.reshard import LayoutError, parse_layout, reshard

    try:
        layout = parse_layout(args.layout)
        path = reshard(newest_in(args.source), args.target, layout)
    except (LayoutError, CheckpointMismatch) as error:
        return _fail(str(error), 2)
    except (CheckpointError, OSError) as error:
        return _fail(str(error), 1)
    print(f"{path}: {layout.short()}, {layout.world_size} ranks")
    return 0


def _fail(message: str, code: int) -> int:
    print(f"meshwright checkpoint reshard: {message}", file=sys.stderr)
    return code
