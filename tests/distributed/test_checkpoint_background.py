"""Saves in the background: what they hold, what they cost, and how they fail."""

import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from meshwright.checkpoint import store
from meshwright.checkpoint.background import BackgroundSaver
from ranks import run_ranks

WRITING = threading.Event()
"""Set: files of tensors may be opened."""


def tensors(step):
    """Split over the ranks, on all of them, and one of each rank's own."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    base = torch.arange(600.0).reshape(60, 10) + step
    return {
        "split": distribute_tensor(base, mesh, [Shard(0)]),
        "copied": distribute_tensor(base + 1000, mesh, [Replicate()]),
        "plain": base + 2000,
        f"own{dist.get_rank()}": base + dist.get_rank(),
    }


def what(step, **changes):
    usual = {"tensors": tensors(step), "state": {"step": step}, "rank_state": {"r": b"x"}, "run_id": "a", "keep": None}
    return usual | changes


def saver():
    return BackgroundSaver(dist.new_group(backend="gloo"), torch.device("cpu"))


def hold_writing():
    """From now on every file of tensors waits for `WRITING`."""
    sys.addaudithook(lambda event, args: event == "open" and ".distcp" in str(args[0]) and WRITING.wait())


def go_on_training(root):
    hold_writing()
    mine, background = what(1), saver()
    assert background.save(root, 1, **mine) is None
    assert background.finished() is None
    with torch.no_grad():
        for tensor in mine["tensors"].values():
            getattr(tensor, "_local_tensor", tensor).fill_(-1)
    # The group of training is free while the save is under way.
    dist.all_reduce(torch.ones(()))
    copied = sum(t.numel() for t in background._copies._blocks.values())
    WRITING.set()
    saved = background.wait()
    assert background.finished() is None
    store.save(root, 2, **what(1))
    return saved.path, saved.step, copied


def test_a_save_holds_what_a_blocking_one_holds_although_training_goes_on(tmp_path):
    results = run_ranks(go_on_training, 3, tmp_path)
    assert [result[:2] for result in results] == [(tmp_path / "step-00000001", 1)] * 3
    # Each rank copies only what it writes: over all ranks one checkpoint.
    assert sum(copied for *_, copied in results) == 600 * 6
    assert store.verify(tmp_path / "step-00000001") == []
    loaded = []
    for step in (1, 2):
        target = {n: torch.zeros(60, 10) for n in ("split", "copied", "plain", "own0", "own1", "own2")}
        store.load_tensors(tmp_path / f"step-{step:08d}", target)
        loaded.append(target)
    for name, tensor in loaded[0].items():
        assert torch.equal(tensor, loaded[1][name]), name
        assert tensor.min() >= 0


def save_three(root):
    background, told = saver(), []
    hold_writing()
    for step in (1, 2, 3):
        threading.Timer(0.2, WRITING.set).start()
        before = background.save(root, step, **what(step, keep=2))
        WRITING.clear()
        told.append((before and before.step, sorted(p.name for p in root.iterdir() if "partial" in p.name)))
    WRITING.set()
    last = background.wait()
    return told, last.step, last.seconds


def test_at_most_one_save_is_under_way(tmp_path):
    for told, last, seconds in run_ranks(save_three, 2, tmp_path):
        partials = [f".step-0000000{step}.partial" for step in (1, 2, 3)]
        assert [before for before, _ in told] == [None, 1, 2]
        assert all(len(there) <= 1 and set(there) <= {name} for (_, there), name in zip(told, partials, strict=True))
        assert last == 3
        assert seconds > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def fail_while_writing(root):
    background = saver()
    store.save(root, 1, **what(1))
    broken = {"armed": dist.get_rank() == 1}

    def hook(event, args):
        if broken["armed"] and event == "open" and "__1_0.distcp" in str(args[0]):
            raise OSError(28, "No space left on device", str(args[0]))

    sys.addaudithook(hook)
    background.save(root, 2, **what(2))
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            background.finished()
            time.sleep(0.01)
        message = "no error"
    except store.CheckpointError as error:
        message = str(error)
    broken["armed"] = False
    assert background.finished() is None
    background.save(root, 3, **what(3))
    background.wait()
    return message


def test_an_error_comes_up_at_the_next_look_and_the_next_save_works(tmp_path):
    messages = run_ranks(fail_while_writing, 2, tmp_path)
    assert len(set(messages)) == 1
    assert "no space left on the file system of" in messages[0]
    assert f"last complete checkpoint: {tmp_path / 'step-00000001'}" in messages[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def save_into_anothers_place(root):
    store.save(root, 1, **what(1))
    with pytest.raises(store.CheckpointMismatch) as error:
        saver().save(root, 1, **what(1, run_id="b"))
    return str(error.value)


def test_what_can_be_refused_is_refused_before_training_goes_on(tmp_path):
    assert all(
        "belongs to another run (a, this one is b)" in m for m in run_ranks(save_into_anothers_place, 2, tmp_path)
    )
