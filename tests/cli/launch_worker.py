"""A rank of the launcher's tests: joins a gloo group, does what its first argument says, no training."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from meshwright.launch.agreement import agree, run_facts
from meshwright.launch.failure import record_failure, set_position

STEPS = 3


def main(behaviour: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=50))
    rank = dist.get_rank()
    agree(run_facts("hash-of-rank-1" if behaviour == "disagree" and rank == 1 else "hash"))
    print(
        f"rank={rank} world={dist.get_world_size()} local={os.environ['LOCAL_RANK']} "
        f"node={os.environ['GROUP_RANK']} port={os.environ['MASTER_PORT']} threads={os.environ['OMP_NUM_THREADS']}",
        flush=True,
    )
    for step in range(1, STEPS + 1):
        set_position(step=step, phase="forward")
        misbehave(behaviour, rank, step)
        dist.all_reduce(torch.ones(1))
    if behaviour == "ignores-sigterm" or behaviour == "sleep":
        print(f"sleeping pid={os.getpid()}", flush=True)
        time.sleep(300)
    dist.barrier()
    dist.destroy_process_group()


def misbehave(behaviour: str, rank: int, step: int) -> None:
    if behaviour == "torn":
        for _ in range(50):
            for piece in (f"<{rank}", "-" * 200, f"{rank}>\n"):
                sys.stdout.write(piece)
                sys.stdout.flush()
    if step != STEPS:
        return
    if behaviour == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    culprit = dist.get_world_size() // 2
    if rank != culprit:
        return
    if behaviour in ("raise", "ignores-sigterm"):
        raise ValueError("x")
    if behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "exit":
        print("leaving through the back door", flush=True)
        os._exit(7)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as exc:
        if sys.argv[1] == "raise":
            record_failure(exc)
            os._exit(1)
        raise
