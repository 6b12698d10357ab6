"""Signals and the stop file, sent to training as schedulers and users do it: by launcher, by rank, under torchrun."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from test_launch_train import CONFIG, LIMIT, corpus, environment, folder, losses

from meshwright.checkpoint.manifest import verify

__all__ = ["corpus", "folder"]
LONG = "train.train_steps=100000"


def start(folder: Path, *command: str) -> tuple[subprocess.Popen, list[str]]:
    """Start training and read what it prints until its first checkpoint."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "checkpoint: " in line:
            break
    return process, lines


def finish(process: subprocess.Popen) -> list[str]:
    out, _ = process.communicate(timeout=LIMIT)
    return out.splitlines()


def after(lines: list[str], text: str) -> str:
    (line,) = [line for line in lines if text in line]
    return line.partition(text)[2]


def assert_saved_where_it_stopped(folder: Path, lines: list[str], reason: str) -> int:
    step = int(after(lines, f"stopped by {reason} after step ").split("/")[0])
    assert verify(folder / "run" / "checkpoints" / f"step-{step:08d}") == []
    assert len(losses(folder / "run")) == step
    return step


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, corpus) -> Path:
    """A run that a SIGTERM to the launcher and all that it started, as schedulers send it, has stopped."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "corpus").symlink_to(corpus)
    (folder / "tiny.yaml").write_text(CONFIG)
    command = ("meshwright", "train", "tiny.yaml", "--nproc-per-node", "2", LONG, "dataset.num_parallel_workers=1")
    process, _ = start(folder, *command)
    family = psutil.Process(process.pid).children(recursive=True)
    for member in family:
        member.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    (folder / "lines.txt").write_text("\n".join(finish(process)))
    assert process.returncode == 0, (folder / "lines.txt").read_text()
    assert psutil.wait_procs(family, timeout=10)[1] == []
    return folder


def test_training_that_is_asked_to_stop_saves_ends_with_0_and_says_what_goes_on(stopped):
    lines = (stopped / "lines.txt").read_text().splitlines()
    # Ranks hear it from the scheduler and from the launcher.
    by_launcher = any("stopped by the launcher" in line for line in lines)
    step = assert_saved_where_it_stopped(stopped, lines, "the launcher" if by_launcher else "SIGTERM")
    command = shlex.split(after(lines, "to go on: "))
    assert command[:3] == ["meshwright", "train", "tiny.yaml"]
    assert command[-2:] == ["--nproc-per-node", "2"]
    for how, reason in ((signal.SIGUSR1, "the launcher"), ("the stop file", "the file run/STOP")):
        process, told = start(stopped, *command)
        assert f"at step {step}" in after(told, "resumed from ")
        if isinstance(how, signal.Signals):
            process.send_signal(how)
        else:
            (stopped / "run" / "STOP").touch()
        lines = finish(process)
        assert process.returncode == 0, "\n".join(lines)
        step = assert_saved_where_it_stopped(stopped, lines, reason)


def test_under_torchrun_it_trains_the_same_and_saves_before_the_agent_ends_the_ranks(folder, stopped):
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m"]
    process, _ = start(folder, *torchrun, "meshwright", "train", "tiny.yaml", LONG)
    process.send_signal(signal.SIGTERM)
    lines = finish(process)
    # torchrun calls every SIGTERM a failure, whatever its ranks make of it.
    assert process.returncode != 0
    assert_saved_where_it_stopped(folder, lines, "SIGTERM")
    assert after(lines, "to go on: ") == f"torchrun --nproc-per-node 2 -m meshwright train tiny.yaml {LONG}"
    pairs = list(zip(losses(folder / "run"), losses(stopped / "run"), strict=False))
    assert len(pairs) >= 2
    assert all(one == other for one, other in pairs)
