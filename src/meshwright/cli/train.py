"""``meshwright train``: check the request, then start a worker for every rank, or be one under torchrun."""

import argparse
import functools
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.config.load import LoadedConfig
    from meshwright.config.run import Run
    from meshwright.config.schema import Config
    from meshwright.launch.nodes import Nodes
    from meshwright.launch.restart import Recovery

    Fit = Callable[[int], str | None]

ELASTIC_RESTARTS = 3


class _RequestError(Exception):
    """What was asked for cannot be done; one message per mistake. Exit code 2."""

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(f"meshwright train: {message}" for message in messages))


def add_parser(subparsers: Any) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "train",
        help="train the model that a config describes",
        epilog="key.path=value arguments, anywhere, override the file. Under torchrun this process is one rank: "
        "torchrun --nproc-per-node 8 -m meshwright train CONFIG",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument(
        "--nproc-per-node",
        type=int,
        metavar="N",
        help="ranks on this node (default: what a fixed layout needs; with data_parallel: auto one per accelerator, "
        "without accelerators the fewest that the layout allows)",
    )
    parser.add_argument(
        "--nnodes",
        default="1",
        metavar="N|MIN:MAX",
        help="nodes; start the same command on each. With MIN:MAX the run goes on when nodes are lost or come back, "
        "from its newest checkpoint and with the same global batch",
    )
    parser.add_argument(
        "--rdzv-endpoint", metavar="HOST:PORT", help="where the nodes meet; on one node a free port is taken"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        metavar="N",
        help="how often the ranks are started again, from the newest checkpoint, after one was killed, crashed or lost "
        f"(default: 0; {ELASTIC_RESTARTS} with --nnodes MIN:MAX)",
    )


def run(args: argparse.Namespace) -> int:
    """0 done, 1 training failed, 2 the request was wrong, 128 + signal when stopped."""
    from meshwright.config.errors import ConfigErrors
    from meshwright.launch.environment import quiet_cpp_log, under_launcher
    from meshwright.launch.nodes import LaunchError

    try:
        if under_launcher():
            return _be_a_rank(args)
        quiet_cpp_log()
        return _launch(args)
    except (_RequestError, ConfigErrors) as error:
        text = str(error)
    except LaunchError as error:
        text = f"meshwright train: {error}"
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr)
    return 2


def _launch(args: argparse.Namespace) -> int:
    from meshwright.launch.endpoint import choose_endpoint
    from meshwright.launch.environment import variables
    from meshwright.launch.nodes import parse_nodes

    nodes = parse_nodes(args.nnodes)
    restarts = args.max_restarts if args.max_restarts is not None else ELASTIC_RESTARTS if nodes.elastic else 0
    if restarts < 0:
        raise _RequestError(f"--max-restarts {restarts}: must be 0 or more")
    choose_endpoint(args.rdzv_endpoint, nodes)
    nproc, the_run, fit = _checked_run(args, nodes)
    from meshwright.launch.run import launch
    from meshwright.train.folders import run_folder
    from meshwright.train.inputs import total_steps, train_dataset
    from meshwright.train.worker import ALL_RANKS, COMMAND

    folder = run_folder(the_run.config)
    known = {COMMAND: _command(args)} | ({ALL_RANKS: str(nproc * nodes.most)} if nodes.elastic else {})
    with variables(**known):
        report = launch(
            [str(args.config), *args.overrides],
            nproc_per_node=nproc,
            nodes=nodes,
            rdzv_endpoint=args.rdzv_endpoint,
            log_dir=folder.logs,
            metrics_file=folder.metrics,
            total_steps=total_steps(the_run, train_dataset(the_run)),
            last_checkpoint=lambda: _last_checkpoint(folder.checkpoints),
            recovery=_recovery(restarts, folder.checkpoints, fit, _resume_command(args, the_run)),
        )
    return report.code


def _recovery(restarts: int, checkpoints: Path, fit: "Fit", command: str) -> "Recovery":
    from meshwright.checkpoint.locate import find_latest, next_sequence
    from meshwright.checkpoint.manifest import read_manifest
    from meshwright.launch.restart import Recovery

    first = next_sequence(checkpoints)

    def saved() -> Path | None:
        newest = find_latest(checkpoints).path
        return newest if newest is not None and read_manifest(newest).sequence >= first else None

    return Recovery(max_restarts=restarts, saved=saved, fit=fit, command=command)


def _command(args: argparse.Namespace) -> str:
    """The command line again."""
    options = {
        "--nproc-per-node": args.nproc_per_node,
        "--nnodes": args.nnodes if args.nnodes != "1" else None,
        "--rdzv-endpoint": args.rdzv_endpoint,
        "--max-restarts": args.max_restarts,
    }
    given = [text for option, value in options.items() if value is not None for text in (option, str(value))]
    return shlex.join(["meshwright", "train", str(args.config), *args.overrides, *given])


def _resume_command(args: argparse.Namespace, the_run: "Run") -> str:
    """The command line again, so that it goes on from the newest checkpoint."""
    command = _command(args)
    return command if the_run.config.checkpoint.resume == "auto" else f"{command} checkpoint.resume=auto"


def _be_a_rank(args: argparse.Namespace) -> int:
    """Under torchrun: check like the launcher does, on every rank, then train."""
    from meshwright.cli import rank
    from meshwright.config.load import load_config
    from meshwright.config.run import resolve
    from meshwright.launch.failure import record_failure
    from meshwright.train import preflight

    if any(value is not None for value in (args.nproc_per_node, args.rdzv_endpoint, args.max_restarts)) or (
        args.nnodes != "1"
    ):
        raise _RequestError("under torchrun the ranks and nodes are torchrun's: give it --nproc-per-node, --nnodes")
    the_run = resolve(load_config(args.config, args.overrides), int(os.environ["WORLD_SIZE"]), device=_device_name())
    if messages := preflight.check(the_run):
        raise _RequestError(*messages)
    try:
        rank.main([str(args.config), *args.overrides])
    except Exception as exc:
        record_failure(exc)
        sys.stdout.flush()
        # No interpreter shutdown: tearing down a broken process group can wait for peers for minutes.
        os._exit(1)
    return 0


def _checked_run(args: argparse.Namespace, nodes: "Nodes") -> "tuple[int, Run, Fit]":
    """Ranks per node, the resolved run on all nodes, and how it fits fewer.

    Raises ConfigErrors, LaunchError or _RequestError, before torch is imported where possible.
    """
    from meshwright.config.load import load_config
    from meshwright.config.run import resolve
    from meshwright.launch.environment import variables

    loaded = load_config(args.config, args.overrides)
    nproc = args.nproc_per_node if args.nproc_per_node is not None else _default_ranks(loaded.config, nodes.most)
    if nproc < 1:
        raise _RequestError(f"--nproc-per-node {nproc}: must be 1 or more")
    the_run = resolve(loaded, nproc * nodes.most, device=_device_name())
    fit = functools.partial(_fit, loaded, the_run)
    fit(nproc * nodes.fewest)
    from meshwright.train import preflight

    with variables(LOCAL_WORLD_SIZE=str(nproc)):
        messages = preflight.check(the_run)
    if messages:
        raise _RequestError(*messages)
    return nproc, the_run, fit


def _fit(loaded: "LoadedConfig", whole: "Run", ranks: int) -> str | None:
    """How an elastic run is cut for fewer ranks. Raises LaunchError where its layout does not fit them."""
    from meshwright.config.elastic import describe_change, resolve_elastic
    from meshwright.config.errors import ConfigErrors
    from meshwright.launch.nodes import LaunchError

    if ranks == whole.layout.world_size:
        return None
    try:
        run = resolve_elastic(loaded, whole.layout.world_size, ranks, device=_device_name())
    except ConfigErrors as errors:
        raise LaunchError(
            f"the layout {whole.layout.short()} does not fit {ranks} of {whole.layout.world_size} ranks:\n{errors}"
        ) from errors
    return describe_change(whole, run)


def _default_ranks(config: "Config", nnodes: int) -> int:
    from meshwright.config.run import smallest_world_size

    fewest = smallest_world_size(config)
    if config.parallel_config.data_parallel == "auto":
        import torch

        if torch.accelerator.is_available():
            return torch.accelerator.device_count()
        return fewest if fewest % nnodes else fewest // nnodes
    if fewest % nnodes:
        raise _RequestError(f"{fewest} ranks do not spread evenly over --nnodes {nnodes}; give --nproc-per-node")
    return fewest // nnodes


def _device_name() -> str:
    from meshwright.parallel.devices import local_device_kind

    return local_device_kind().name


def _last_checkpoint(root: Path) -> Path | None:
    from meshwright.checkpoint.locate import find_latest

    return find_latest(root).path
