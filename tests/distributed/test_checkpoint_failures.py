"""Ranks that fail or leave in the middle of a save lose nothing that was saved before (B-18)."""

import sys

import pytest
import torch
import torch.distributed as dist

from meshwright.checkpoint import store
from ranks import run_ranks
from trainer_runs import train, write_config


def tensors(step):
    rank = dist.get_rank()
    return {f"rank{rank}.w": torch.full((1000,), float(step)), "shared": torch.full((10,), float(step))}


def save(root, step, **changes):
    arguments = {"tensors": tensors(step), "state": {"step": step}, "rank_state": {"r": b"x"}, "run_id": "a"}
    return store.save(root, step, **(arguments | changes), keep=1)


def assert_loads(path, step, world):
    target = {f"rank{rank}.w": torch.zeros(1000) for rank in range(world)} | {"shared": torch.zeros(10)}
    store.load_tensors(path, target)
    assert all(bool((t == step).all()) for t in target.values())


def failing_save(root, what):
    save(root, 1)
    last = dist.get_rank() == dist.get_world_size() - 1
    broken = {
        "tensor": {"tensors": {"gone": torch.empty(2, device="meta")}},
        "rank_state": {"rank_state": {"r": object()}},
    }[what]
    with pytest.raises(store.CheckpointError) as error:
        save(root, 2, **(broken if last else {}))
    save(root, 3)
    return str(error.value)


@pytest.mark.parametrize(
    ("what", "cause"), [("tensor", "NotImplementedError"), ("rank_state", "not JSON serializable")]
)
def test_one_rank_failing_is_told_by_all(tmp_path, what, cause):
    messages = run_ranks(failing_save, 3, tmp_path, what)
    assert len(set(messages)) == 1
    assert "saving step 2" in messages[0]
    assert "failed on rank 2: " in messages[0]
    assert cause in messages[0]
    assert f"last complete checkpoint: {tmp_path / 'step-00000001'}" in messages[0]
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000003"]
    assert_loads(tmp_path / "step-00000003", 3, 3)


def save_while_a_rank_leaves(root):
    save(root, 1)
    if dist.get_rank() == 0:
        sys.addaudithook(lambda name, arguments: leave(name, str(arguments[:1])))
    try:
        save(root, 2)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def leave(event, path):
    if event == "open" and "state.json" in path and dist.is_initialized():
        dist.destroy_process_group()


def test_the_others_say_that_a_rank_is_gone(tmp_path):
    _, message = run_ranks(save_while_a_rank_leaves, 2, tmp_path)
    assert message.startswith("PeerLost: writing run state: rank 1 lost contact with another rank")
    assert store.find_latest(tmp_path, "a").step == 1


def save_to_own_folder(root):
    with pytest.raises(store.CheckpointError) as error:
        save(root / f"machine{dist.get_rank()}", 1)
    return str(error.value)


def test_a_folder_that_is_not_shared_is_told(tmp_path):
    messages = run_ranks(save_to_own_folder, 2, tmp_path)
    assert all("failed on rank 1: " in m and "one file system that all machines share" in m for m in messages)
    assert store.find_latest(tmp_path / "machine0") == store.Found(None)


def start_in_own_folder(config, root):
    with pytest.raises(store.CheckpointError) as error:
        train(config, (f"output_dir={root / f'machine{dist.get_rank()}'}",))
    return str(error.value)


def test_a_folder_that_is_not_shared_is_told_before_the_first_step(tmp_path):
    messages = run_ranks(start_in_own_folder, 2, write_config(tmp_path, "dp2"), tmp_path)
    assert all("failed on rank 1: " in m and "one file system that all machines share" in m for m in messages)
    for rank in (0, 1):
        root = tmp_path / f"machine{rank}"
        assert [path for path in root.rglob("*") if path.is_file()] == []
