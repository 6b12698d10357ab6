"""``meshwright bench --calibrate``: measure this machine and write a hardware file for the planner."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


class _RequestError(Exception):
    """What was asked for makes no sense; exit code 2."""


def add_parser(subparsers: Any) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "bench",
        help="measure this machine for the planner",
        epilog="Start the same command on every node to measure the network, too. Exit codes: 0 done, 1 a rank"
        " failed, 2 the request was wrong.",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=argparse.SUPPRESS)
    parser.add_argument(
        "--calibrate", action="store_true", help="measure matrix products, memory bandwidth and collectives"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write a hardware file for plan --hardware FILE")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--seconds", type=float, default=60, metavar="S", help="time to spend, about (default: 60)")
    parser.add_argument(
        "--nproc-per-node",
        type=int,
        metavar="N",
        help="ranks on this node (default: one per accelerator; 2 without accelerators)",
    )
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="nodes; start the same command on each")
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where the nodes meet")
    parser.add_argument("--device", metavar="NAME", help="catalogue device to start from (default: what is here)")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")


def run(args: argparse.Namespace) -> int:
    """0 done, 1 a rank failed, 2 the request was wrong."""
    from meshwright.launch.nodes import LaunchError

    try:
        _check(args)
        return _calibrate(args)
    except (_RequestError, LaunchError) as error:
        print(f"meshwright bench: {error}", file=sys.stderr)
        return 2


def _check(args: argparse.Namespace) -> None:
    from meshwright.launch.environment import under_launcher
    from meshwright.spec.catalogue import hardware

    if args.config is not None:
        raise _RequestError(
            f"bench {args.config}: timing a config on growing numbers of devices is not supported yet;"
            " bench --calibrate measures the machine itself"
        )
    if not args.calibrate:
        raise _RequestError("give --calibrate to measure this machine")
    for name, value in (("nproc-per-node", args.nproc_per_node), ("nnodes", args.nnodes)):
        if value is not None and value < 1:
            raise _RequestError(f"--{name} {value}: must be 1 or more")
    if not 1 <= args.seconds <= 3600:
        raise _RequestError(f"--seconds {args.seconds:g}: must be from 1 to 3600")
    if under_launcher():
        raise _RequestError("starts its ranks itself; run it without torchrun")
    if args.output and args.output.exists() and not args.force:
        raise _RequestError(f"--output {args.output}: exists already; --force overwrites it")
    if args.output and not args.output.resolve().parent.is_dir():
        raise _RequestError(f"--output {args.output}: no such folder {args.output.resolve().parent}")
    if args.device is not None:
        try:
            hardware(args.device)
        except ValueError as error:
            raise _RequestError(f"--device: {error}") from None


def _calibrate(args: argparse.Namespace) -> int:
    from meshwright.diagnose.calibrate import UnknownDevice, calibrate, hardware_file, hardware_values, table

    measured = calibrate(
        nproc_per_node=args.nproc_per_node or _default_ranks(),
        nnodes=args.nnodes,
        rdzv_endpoint=args.rdzv_endpoint,
        seconds=args.seconds,
    )
    if isinstance(measured, int):
        if measured == 0:
            print("measured; the node with rank 0 has the result", file=sys.stderr)
        return measured
    print(json.dumps(measured.found, indent=2) if args.json else table(measured))
    if args.output is None:
        return 0
    try:
        values = hardware_values(measured, args.device)
    except UnknownDevice as error:
        raise _RequestError(str(error)) from None
    args.output.write_text(hardware_file(measured, values))
    print(f"wrote {args.output}; next: meshwright plan CONFIG --hardware {args.output}", file=sys.stderr)
    return 0


def _default_ranks() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 2
