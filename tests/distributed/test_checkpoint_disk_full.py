"""A real file system that is too small: told in words, nothing lost, nothing left (B-18)."""

import os
import subprocess

import pytest
import torch
import torch.distributed as dist

from meshwright.checkpoint import store
from ranks import run_ranks


@pytest.fixture
def small_disk(tmp_path):
    """A mounted file system of 50 MiB with 2 MiB left."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"mounting a small file system is not allowed here: {mount.stderr.strip()}")
    (folder / "others").write_bytes(bytes(48 << 20))
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def contents(what):
    """Too much for 2 MiB together: known before the first byte, found by a rank, found by the first rank."""
    rank = dist.get_rank()
    if what == "large":
        return {"tensors": {f"w{rank}": torch.zeros(1024, 1024)}}
    if what == "many":
        return {"tensors": {f"w{rank}.{i}": torch.zeros(()) for i in range(3000)}}
    return {"state": {"text": "x" * 3_000_000}}


def overfill(root, what):
    usual = {"tensors": {"w": torch.ones(8)}, "state": {}, "rank_state": {}, "run_id": "r"}
    store.save(root, 1, **usual)
    with pytest.raises(store.CheckpointError) as error:
        store.save(root, 2, **(usual | contents(what)))
    store.save(root, 3, **usual)
    return str(error.value)


@pytest.mark.parametrize(("what", "needed"), [("large", "8.0 MiB"), ("many", "8.9 MiB"), ("state", "2.9 MiB")])
def test_b18_full_disk(small_disk, what, needed):
    messages = run_ranks(overfill, 2, small_disk, what)
    assert len(set(messages)) == 1
    assert f"no space left on the file system of {small_disk}" in messages[0]
    assert f"needs about {needed}, 2.0 MiB were free before it" in messages[0]
    assert messages[0].endswith(f"last complete checkpoint: {small_disk / 'step-00000001'}")
    assert sorted(p.name for p in small_disk.iterdir()) == ["others", "step-00000001", "step-00000003"]
    for step in (1, 3):
        assert store.verify(small_disk / f"step-{step:08d}") == []
