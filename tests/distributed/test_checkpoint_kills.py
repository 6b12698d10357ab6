"""kill -9 at every moment of a save: right before a file or folder is opened, made, renamed or removed (B-18)."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from meshwright.checkpoint import store
from meshwright.checkpoint.background import BackgroundSaver
from meshwright.checkpoint.locate import owner
from ranks import RanksFailed, run_ranks

WORLD = 2
PARTIAL = ".step-00000002.partial"
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def what(step):
    rank = dist.get_rank()
    tensors = {f"rank{rank}.w": torch.full((1000,), float(step)), "shared": torch.full((10,), float(step))}
    return {"tensors": tensors, "state": {"step": step}, "rank_state": {"r": b"x"}, "run_id": "a", "keep": 1}


def save_twice(root, beside, victim, moment):
    """Save step 1, then step 2; the victim dies right before its ``moment``-th event under ``root`` in the second save.

    Returns the events that this rank saw.
    """
    background = BackgroundSaver(dist.new_group(backend="gloo"), torch.device("cpu"))
    store.save(root, 1, **what(1))
    dist.barrier()
    seen = []

    def hook(event, arguments):
        if event in EVENTS and str(root) in str(arguments[0]):
            seen.append(f"{event} {Path(str(arguments[0])).relative_to(root)}")
            if len(seen) == moment and dist.get_rank() == victim:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    if beside:
        background.save(root, 2, **what(2))
        background.wait()
    else:
        store.save(root, 2, **what(2))
    return seen


def assert_holds(path, step):
    assert store.verify(path) == []
    target = {f"rank{rank}.w": torch.zeros(1000) for rank in range(WORLD)} | {"shared": torch.zeros(10)}
    store.load_tensors(path, target)
    assert all(bool((tensor == step).all()) for tensor in target.values())


def assert_nothing_is_lost(root, left):
    """The newest complete checkpoint is that of step ``left``, whole; what was begun is named; the next save works."""
    found = store.find_latest(root, "a")
    assert found.step == left
    assert_holds(found.path, left)
    interrupted = root / ".step-00000002.partial"
    reason = "the save was interrupted before it was complete"
    assert dict(found.skipped) == ({interrupted: reason} if interrupted.exists() else {})
    # A folder that was killed before it said whose it is goes when its step is saved, any other with the next save.
    assert owner(interrupted) == "a" or not interrupted.exists() or not any(interrupted.rglob("*.distcp"))
    step = 3 if owner(interrupted) else 2
    tensors = {f"rank{rank}.w": torch.full((1000,), float(step)) for rank in range(WORLD)}
    tensors["shared"] = torch.full((10,), float(step))
    store.save(root, step, tensors=tensors, state={}, rank_state={}, run_id="a", keep=1)
    assert [path.name for path in root.iterdir()] == [f"step-0000000{step}"]
    assert_holds(root / f"step-0000000{step}", step)


# Beside training the same code runs on a thread: of its moments every second one is enough.
@pytest.mark.parametrize(("beside", "every"), [(False, 1), (True, 2)], ids=["blocking", "background"])
def test_b18_no_kill_loses_what_was_saved(tmp_path, beside, every):
    moments = run_ranks(save_twice, WORLD, tmp_path / "none", beside, None, None)
    completion = f"os.rename {PARTIAL}"
    for named in (f"open {PARTIAL}/tensors/__0_0.distcp", f"open {PARTIAL}/manifest.json", completion):
        assert named in moments[0], named
    assert f"open {PARTIAL}/tensors/__1_0.distcp" in moments[1]
    lefts = []
    for victim, events in enumerate(moments):
        for moment in range(1, len(events) + 1, every):
            root = tmp_path / f"{victim}-{moment}"
            with pytest.raises((RanksFailed, store.PeerLost)):
                run_ranks(save_twice, WORLD, root, beside, victim, moment)
            lefts.append(2 if completion in events[: moment - 1] else 1)
            assert_nothing_is_lost(root, lefts[-1])
    print(f"{len(lefts)} kills, 0 losses; {lefts.count(1)} left the save before, {lefts.count(2)} the new one")
    assert len(lefts) >= 30 // every
    assert set(lefts) == {1, 2}
