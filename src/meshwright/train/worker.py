"""What each rank does: join the others, train, leave. `meshwright.cli.rank` is the module that a launcher starts."""

import os
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.config.elastic import resolve_elastic
from meshwright.config.load import load_config
from meshwright.config.run import config_hash
from meshwright.launch.failure import set_position

if TYPE_CHECKING:
    from meshwright.train.memory import MakeMemory

COMMAND = "MESHWRIGHT_COMMAND"
"""Environment variable with the command line that a launcher was started with."""
ALL_RANKS = "MESHWRIGHT_ALL_RANKS"
"""Environment variable with the ranks of an elastic run when all of its nodes take part."""


def main(arguments: Sequence[str], make_memory: "MakeMemory | None" = None) -> None:
    """Train this rank's part of the run; a failure leaves as the exception that it is.

    Args:
        arguments: the config and what overrides it.
        make_memory: what is told of memory; by default what the device's allocator counts.
    """
    import torch
    import torch.distributed as dist

    from meshwright.launch.agreement import agree, run_facts
    from meshwright.parallel.devices import keep_freed_memory, local_device, local_device_kind
    from meshwright.train.build import init_process_group
    from meshwright.train.memory import RunMemory
    from meshwright.train.stopping import StopSignals
    from meshwright.train.trainer import Trainer

    quiet_torch()
    signals = StopSignals()
    signals.catch()
    kind = local_device_kind()
    keep_freed_memory(kind)
    ranks = int(os.environ["WORLD_SIZE"])
    all_ranks = int(os.environ.get(ALL_RANKS, ranks))
    run = resolve_elastic(load_config(Path(arguments[0]), arguments[1:]), all_ranks, ranks, device=kind.name)
    device = local_device(kind, int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    set_position(phase="connect")
    init_process_group(kind)
    set_position(phase="compare ranks")
    agree(run_facts(config_hash(run)))
    set_position(phase="open data")
    memory = (make_memory or RunMemory)(run, kind, device)
    with memory.watching():
        stopped = Trainer(run, kind=kind, device=device, signals=signals, memory=memory).fit()
    if stopped and dist.get_rank() == 0:
        print(f"to go on: {resume_command(arguments, run.config.checkpoint.resume)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def resume_command(arguments: Sequence[str], resume: str) -> str:
    """The command that goes on from the newest checkpoint: the one that started this run, as far as a rank knows it."""
    nodes = os.environ.get("GROUP_WORLD_SIZE", "1")
    several = f" --nnodes {nodes}" if nodes != "1" else ""
    torchrun = f"torchrun{several} --nproc-per-node {os.environ['LOCAL_WORLD_SIZE']} -m meshwright train"
    command = os.environ.get(COMMAND) or f"{torchrun} {shlex.join(arguments)}"
    return command if resume == "auto" else f"{command} checkpoint.resume=auto"


def quiet_torch() -> None:
    """Silence warnings that say nothing to a user of Meshwright."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\\..*")
    warnings.filterwarnings("ignore", message=".*_StridedShard.*")
