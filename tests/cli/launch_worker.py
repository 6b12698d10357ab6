"""A rank of the launcher's tests: does what its first argument says, no training.

Ranks that fail join a gloo group first. The others do without torch, whose import is most of what a test costs.
"""

import os
import signal
import sys
import time

from meshwright.launch.failure import record_failure, set_position
from meshwright.launch.signals import listen

STEPS = 3


def main(behaviour: str) -> None:
    if behaviour in ("sleep", "deaf", "torn", "place"):
        alone(behaviour)
    else:
        together(behaviour)


def alone(behaviour: str) -> None:
    """Without a group."""
    tell_place()
    if behaviour == "torn":
        for _ in range(50 * STEPS):
            for piece in (f"<{os.environ['RANK']}", "-" * 200, f"{os.environ['RANK']}>\n"):
                sys.stdout.write(piece)
                sys.stdout.flush()
    if behaviour == "deaf":
        listen(lambda wish: print(f"heard {wish.signal.name}", flush=True))
    if behaviour in ("sleep", "deaf"):
        set_position(step=1, phase="forward")
        print(f"sleeping pid={os.getpid()}", flush=True)
        time.sleep(300)


def tell_place() -> None:
    env = os.environ
    print(
        f"rank={env['RANK']} world={env['WORLD_SIZE']} local={env['LOCAL_RANK']} node={env['GROUP_RANK']} "
        f"port={env['MASTER_PORT']} threads={env['OMP_NUM_THREADS']}",
        flush=True,
    )


def together(behaviour: str) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from meshwright.launch.agreement import agree, run_facts
    from meshwright.launch.group import join_group

    join_group("gloo", timeout=timedelta(seconds=50))
    rank = dist.get_rank()
    agree(run_facts("hash-of-rank-1" if behaviour == "disagree" and rank == 1 else "hash"))
    tell_place()
    stuck = dist.new_group([0, 2]) if behaviour == "stuck" else None
    for step in range(1, STEPS + 1):
        set_position(step=step, phase="forward")
        if step == STEPS:
            misbehave(behaviour, rank)
            if behaviour == "stuck" and rank == 0:
                listen(lambda wish: None)
                # Rank 2 never comes, and no rank of this group is lost.
                dist.all_reduce(torch.ones(1), group=stuck)
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


def misbehave(behaviour: str, rank: int) -> None:
    culprit = int(os.environ["WORLD_SIZE"]) // 2
    if behaviour == "stuck" and rank == 2:
        listen(lambda wish: None)
        time.sleep(300)
    if rank != culprit:
        return
    if behaviour == "stuck":
        # The others are where they get stuck.
        time.sleep(1)
    if behaviour in ("raise", "stuck"):
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
