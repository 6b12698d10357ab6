"""kill -9 at every moment of a save: right before a file or folder is opened, made, renamed or removed (B-18)."""

import os
import signal
import sys

import pytest
import torch
import torch.distributed as dist

from meshwright.checkpoint import store
from meshwright.checkpoint.background import BackgroundSaver
from ranks import RanksFailed, run_ranks

WORLD = 2
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def what(step):
    rank = dist.get_rank()
    tensors = {f"rank{rank}.w": torch.full((1000,), float(step)), "shared": torch.full((10,), float(step))}
    return {"tensors": tensors, "state": {"step": step}, "rank_state": {"r": b"x"}, "run_id": "a", "keep": 1}


def save_twice(root, beside, victim, moment):
    """Save step 1, then step 2; the victim dies right before its ``moment``-th event under ``root`` in the second save.

    Returns how many events this rank saw.
    """
    background = BackgroundSaver(dist.new_group(backend="gloo"), torch.device("cpu"))
    store.save(root, 1, **what(1))
    dist.barrier()
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if event in EVENTS and str(root) in str(arguments[0]):
            seen += 1
            if seen == moment and dist.get_rank() == victim:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    if beside:
        background.save(root, 2, **what(2))
        background.wait()
    else:
        store.save(root, 2, **what(2))
    return seen


def assert_nothing_is_lost(root):
    found = store.find_latest(root, "a")
    assert found.step in (1, 2)
    assert store.verify(found.path) == []
    target = {f"rank{rank}.w": torch.zeros(1000) for rank in range(WORLD)} | {"shared": torch.zeros(10)}
    store.load_tensors(found.path, target)
    assert all(bool((tensor == found.step).all()) for tensor in target.values())
    return found.step


@pytest.mark.parametrize("beside", [False, True], ids=["blocking", "background"])
def test_no_kill_loses_what_was_saved(tmp_path, beside):
    moments = run_ranks(save_twice, WORLD, tmp_path / "none", beside, None, None)
    left = []
    for victim, count in enumerate(moments):
        for moment in range(1, count + 1):
            root = tmp_path / f"{victim}-{moment}"
            with pytest.raises((RanksFailed, store.PeerLost)):
                run_ranks(save_twice, WORLD, root, beside, victim, moment)
            left.append(assert_nothing_is_lost(root))
    print(f"{len(left)} kills, 0 losses; {left.count(1)} left the save before, {left.count(2)} the new one")
    assert len(left) >= 30
    assert {1, 2} == set(left)
