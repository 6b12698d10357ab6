"""``meshwright checkpoint``: look into checkpoints, check them, and turn them into other ones."""

import argparse
import importlib
from typing import Any

# Each module has ``add_parser(actions)``, which imports nothing heavy, and ``run(args) -> int``.
ACTIONS = {
    "convert": "meshwright.cli.checkpoint_convert",
    "export": "meshwright.cli.checkpoint_export",
    "inspect": "meshwright.cli.checkpoint_inspect",
    "reshard": "meshwright.cli.checkpoint_reshard",
    "verify": "meshwright.cli.checkpoint_verify",
}


def add_parser(subparsers: Any) -> None:
    """Add the verb and its actions."""
    parser = subparsers.add_parser("checkpoint", help="look into checkpoints, check and convert them")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for module in ACTIONS.values():
        importlib.import_module(module).add_parser(actions)


def run(args: argparse.Namespace) -> int:
    """0 done, 1 the work failed, 2 the request was wrong."""
    return int(importlib.import_module(ACTIONS[args.action]).run(args))
