"""``meshwright train`` killed -9, launcher and ranks at once, and run again as it was (B-18)."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from test_launch_stop import start
from test_launch_train import CONFIG, LIMIT, losses

from meshwright.checkpoint.locate import Found, find_latest
from meshwright.checkpoint.manifest import verify
from meshwright.data.indexed_writer import IndexedWriter

COMMAND = (
    "meshwright",
    "train",
    "tiny.yaml",
    "--nproc-per-node",
    "2",
    "checkpoint.save_checkpoint_steps=1",
    "train.train_steps=100000",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    with IndexedWriter(tmp_path / "corpus" / "c", vocab_size=512) as writer:
        writer.add_document(np.arange(20_000) % 512)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


def between_saves(root: Path) -> bool:
    return not any(root.glob(".step-*.partial"))


def shard_written(root: Path) -> bool:
    return any(root.glob(".step-*.partial/tensors/*.distcp")) and not just_before_completion(root)


def just_before_completion(root: Path) -> bool:
    return any(root.glob(".step-*.partial/manifest.json"))


def kill(process: subprocess.Popen, root: Path, moment: Callable[[Path], bool]) -> None:
    """Kill launcher and ranks at a moment: all are held there first, to be sure that this is where they stand."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if moment(root):
            for member in family:
                member.suspend()
            # What a process is in the middle of doing to the disk may still be done.
            time.sleep(0.02)
            if moment(root):
                for member in family:
                    member.kill()
                process.communicate(timeout=LIMIT)
                return
            for member in family:
                member.resume()
        time.sleep(0.0002)
    raise TimeoutError(f"{moment.__name__} did not come")


def test_b18_a_run_killed_at_three_moments_goes_on_from_its_newest_complete_checkpoint(folder):
    root = folder / "run" / "checkpoints"
    step, skipped = 0, None
    for moment in (shard_written, just_before_completion, between_saves):
        process, lines = start(folder, *COMMAND)
        assert_goes_on(lines, step, skipped)
        kill(process, root, moment)
        step = max(int(path.name.removeprefix("step-")) for path in root.glob("step-*") if not verify(path))
        skipped = next((path.name for path in root.glob(".step-*.partial")), None)
        assert (skipped is None) == (moment is between_saves)
    assert find_latest(root) == Found(root / f"step-{step:08d}", step)
    assert len(losses(folder / "run")) >= step


def assert_goes_on(lines: list[str], step: int, skipped: str | None) -> None:
    """It resumed at a step, and named what it passed over."""
    said = "".join(lines)
    assert (f"resumed from run/checkpoints/step-{step:08d} at step {step}\n" in said) == (step > 0), said
    if skipped is None:
        assert "passed over" not in said
    else:
        assert f"passed over run/checkpoints/{skipped}: the save was interrupted before it was complete" in said
