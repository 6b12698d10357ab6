"""What each rank runs: ``python -m meshwright.train.worker CONFIG [key.path=value ...]`` under a launcher."""

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from meshwright.config.load import load_config
from meshwright.config.run import config_hash, resolve
from meshwright.launch.failure import set_position


def main(arguments: Sequence[str]) -> None:
    """Train this rank's part of the run; a failure leaves as the exception that it is."""
    import torch
    import torch.distributed as dist

    from meshwright.launch.agreement import agree, run_facts
    from meshwright.parallel.devices import keep_freed_memory, local_device, local_device_kind
    from meshwright.train.build import init_process_group
    from meshwright.train.trainer import Trainer

    quiet_torch()
    kind = local_device_kind()
    keep_freed_memory(kind)
    run = resolve(load_config(Path(arguments[0]), arguments[1:]), int(os.environ["WORLD_SIZE"]), device=kind.name)
    device = local_device(kind, int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    set_position(phase="connect")
    init_process_group(kind)
    set_position(phase="compare ranks")
    agree(run_facts(config_hash(run)))
    set_position(phase="open data")
    Trainer(run, kind=kind, device=device).fit()
    dist.barrier()
    dist.destroy_process_group()


def quiet_torch() -> None:
    """Silence warnings that say nothing to a user of Meshwright."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\\..*")
    warnings.filterwarnings("ignore", message=".*_StridedShard.*")


if __name__ == "__main__":
    main(sys.argv[1:])
