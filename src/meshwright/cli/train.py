"""``meshwright train``: check the request, then start a worker for every rank, or be one under torchrun."""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.config.run import Run
    from meshwright.config.schema import Config


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
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="nodes; start the same command on each")
    parser.add_argument(
        "--rdzv-endpoint", metavar="HOST:PORT", help="where the nodes meet; on one node a free port is taken"
    )


def run(args: argparse.Namespace) -> int:
    """0 done, 1 training failed, 2 the request was wrong, 128 + signal when stopped."""
    from meshwright.config.errors import ConfigErrors
    from meshwright.launch.endpoint import LaunchError
    from meshwright.launch.environment import quiet_cpp_log, under_launcher

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
    from meshwright.launch.run import launch
    from meshwright.train.folders import run_folder
    from meshwright.train.inputs import total_steps, train_dataset
    from meshwright.train.worker import COMMAND

    if args.nnodes < 1:
        raise _RequestError(f"--nnodes {args.nnodes}: must be 1 or more")
    choose_endpoint(args.rdzv_endpoint, args.nnodes)
    nproc, the_run = _checked_run(args)
    folder = run_folder(the_run.config)
    with variables(**{COMMAND: _command(args)}):
        report = launch(
            [str(args.config), *args.overrides],
            nproc_per_node=nproc,
            nnodes=args.nnodes,
            rdzv_endpoint=args.rdzv_endpoint,
            log_dir=folder.logs,
            metrics_file=folder.metrics,
            total_steps=total_steps(the_run, train_dataset(the_run)),
            last_checkpoint=lambda: _last_checkpoint(folder.checkpoints),
        )
    return report.code


def _command(args: argparse.Namespace) -> str:
    """The command line again."""
    options = {
        "--nproc-per-node": args.nproc_per_node,
        "--nnodes": args.nnodes if args.nnodes > 1 else None,
        "--rdzv-endpoint": args.rdzv_endpoint,
    }
    given = [text for option, value in options.items() if value is not None for text in (option, str(value))]
    return shlex.join(["meshwright", "train", str(args.config), *args.overrides, *given])


def _be_a_rank(args: argparse.Namespace) -> int:
    """Under torchrun: check like the launcher does, on every rank, then train."""
    from meshwright.cli import rank
    from meshwright.config.load import load_config
    from meshwright.config.run import resolve
    from meshwright.launch.failure import record_failure
    from meshwright.train import preflight

    if args.nproc_per_node is not None or args.nnodes != 1 or args.rdzv_endpoint is not None:
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


def _checked_run(args: argparse.Namespace) -> "tuple[int, Run]":
    """Ranks per node and the resolved run. Raises ConfigErrors or _RequestError, before torch where possible."""
    from meshwright.config.load import load_config
    from meshwright.config.run import resolve
    from meshwright.launch.environment import variables

    loaded = load_config(args.config, args.overrides)
    nproc = args.nproc_per_node if args.nproc_per_node is not None else _default_ranks(loaded.config, args.nnodes)
    if nproc < 1:
        raise _RequestError(f"--nproc-per-node {nproc}: must be 1 or more")
    the_run = resolve(loaded, nproc * args.nnodes, device=_device_name())
    from meshwright.train import preflight

    with variables(LOCAL_WORLD_SIZE=str(nproc)):
        messages = preflight.check(the_run)
    if messages:
        raise _RequestError(*messages)
    return nproc, the_run


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
