"""``meshwright dryrun``: the training step of any rank on tensors without data: will it fit, and what fills it."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.cli import dryrun_files

if TYPE_CHECKING:
    from meshwright.config.load import LoadedConfig
    from meshwright.config.run import Run
    from meshwright.dryrun.findings import Findings, RankFound
    from meshwright.spec.cluster import Cluster

DEFAULT_HARDWARE = "h100"


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "dryrun",
        help="run the training step of one rank on fake tensors: will it fit, and what fills the memory",
        epilog="key.path=value arguments, anywhere, override the file. Exit codes: 0 every rank fits, 1 one does not,"
        " 2 the request was wrong.",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--world-size", type=int, metavar="N", help="default: the fewest that the layout allows")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="rank to run (default: 0)")
    which.add_argument("--all-stages", action="store_true", help="one rank of each pipeline stage")
    parser.add_argument("--target", choices=("cuda", "cpu"), help="what tensors would live on (default: the hardware)")
    parser.add_argument(
        "--hardware", metavar="NAME|FILE", help=f"device (default: {DEFAULT_HARDWARE}; cpu with --target cpu)"
    )
    parser.add_argument("--fast", action="store_true", help="one step, a long one extrapolated from small runs")
    parser.add_argument("--levers", action="store_true", help="also dry-run the changes that would save most")
    parser.add_argument("--json", action="store_true", help="print JSON")
    dryrun_files.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run, print, and return the exit code."""
    from meshwright.dryrun.garbage import garbage_kept

    try:
        with garbage_kept():
            return _run(args)
    except ValueError as error:
        print(f"meshwright dryrun: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    from meshwright.config.hardware import hardware_cluster
    from meshwright.config.load import load_config
    from meshwright.config.run import smallest_world_size
    from meshwright.train.worker import quiet_torch

    loaded = load_config(args.config, args.overrides)
    world_size = smallest_world_size(loaded.config) if args.world_size is None else args.world_size
    if world_size < 1:
        raise ValueError(f"--world-size {world_size}: must be 1 or more")
    cluster = hardware_cluster(args.hardware or ("cpu" if args.target == "cpu" else DEFAULT_HARDWARE), world_size)
    args.target = args.target or ("cpu" if cluster.device.family == "cpu" else "cuda")
    dryrun_files.check(args)
    resolved = _resolved(loaded, world_size)
    quiet_torch()
    findings = _find(resolved, cluster, args)
    _show(findings, args)
    dryrun_files.write(findings, args)
    return 0 if findings.fits else 1


def _resolved(loaded: "LoadedConfig", world_size: int) -> "Run":
    """The run; where its own numbers do not make ``world_size``, with what they make among the mistakes."""
    from meshwright.config.errors import COMMAND_LINE, ConfigError, ConfigErrors
    from meshwright.config.run import resolve, smallest_world_size

    try:
        return resolve(loaded, world_size)
    except ConfigErrors as wrong:
        legal = smallest_world_size(loaded.config)
        if world_size == legal or loaded.config.parallel_config.data_parallel == "auto":
            raise
        message = f"{world_size} is not what parallel_config makes"
        mistake = ConfigError.at(COMMAND_LINE, message, "--world-size", f"as it is written: {legal}")
        raise ConfigErrors([*wrong.errors, mistake]) from None


def _find(run: "Run", cluster: "Cluster", args: argparse.Namespace) -> "Findings":
    from meshwright.dryrun.findings import Findings
    from meshwright.dryrun.levers import computed_changes, with_dry_runs
    from meshwright.dryrun.run import stage_ranks

    ranks = stage_ranks(run.layout) if args.all_stages else (args.rank or 0,)
    found = tuple(_one(run, rank, cluster, args) for rank in ranks)
    changes = computed_changes(run, cluster)
    if args.levers:
        _tell("dry runs of changes")
        known = {rank.result.rank: rank.result for rank in found} if args.fast else {}
        changes = with_dry_runs(changes, run, cluster, args.target, known)
    return Findings(run=run, cluster=cluster, ranks=found, changes=changes)


def _one(run: "Run", rank: int, cluster: "Cluster", args: argparse.Namespace) -> "RankFound":
    from meshwright.dryrun.findings import RankFound
    from meshwright.dryrun.run import dry_run
    from meshwright.dryrun.verdict import verdict

    _tell(f"dry run of rank {rank}")
    result = dry_run(run, rank, target_name=args.target, family=cluster.device.family, fast=args.fast)
    return RankFound(result=result, verdict=verdict(result, cluster.device))


def _tell(work: str) -> None:
    """Say what is going on to who waits at a terminal."""
    if sys.stderr.isatty():
        print(f"{work} ...", file=sys.stderr)


def _show(findings: "Findings", args: argparse.Namespace) -> None:
    from meshwright.dryrun.as_json import findings_json
    from meshwright.dryrun.text import report

    print(json.dumps(findings_json(findings), indent=2) if args.json else "\n".join(report(findings)))
