"""Signals and the stop file, sent to training as schedulers and users do it: by launcher, by rank, under torchrun."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from test_launch_train import LIMIT, corpus, environment, folder, losses, meshwright

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


@pytest.mark.parametrize("how", ["SIGTERM to the launcher", "SIGUSR1 to the launcher", "SIGTERM to everybody", "file"])
def test_training_that_is_asked_to_stop_saves_and_ends_with_0(folder, how):
    extra = ["dataset.num_parallel_workers=1"] if how == "SIGTERM to everybody" else []
    process, _ = start(folder, "meshwright", "train", "tiny.yaml", "--nproc-per-node", "2", LONG, *extra)
    family = psutil.Process(process.pid).children(recursive=True)
    if how == "file":
        (folder / "run" / "STOP").touch()
        reason = "the file run/STOP"
    else:
        reason = how.split()[0] if how.endswith("everybody") else "the launcher"
        for member in family if how.endswith("everybody") else []:
            member.send_signal(signal.SIGTERM)
        process.send_signal(getattr(signal, how.split()[0]))
    lines = finish(process)
    assert process.returncode == 0, "\n".join(lines)
    step = assert_saved_where_it_stopped(folder, lines, reason)
    assert psutil.wait_procs(family, timeout=10)[1] == []
    # The command that it prints goes on from there.
    command = shlex.split(after(lines, "to go on: "))
    assert command[:3] == ["meshwright", "train", "tiny.yaml"]
    assert command[-2:] == ["--nproc-per-node", "2"]
    again = meshwright(folder, *[f"train.train_steps={step + 1}" if part == LONG else part for part in command[1:]])
    assert again.returncode == 0, again.stderr
    assert f"at step {step}" in after(again.stdout.splitlines(), "resumed from ")
    assert len(losses(folder / "run")) == step + 1


def test_under_torchrun_ranks_save_before_its_agent_ends_them(folder):
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m"]
    process, _ = start(folder, *torchrun, "meshwright", "train", "tiny.yaml", LONG)
    process.send_signal(signal.SIGTERM)
    lines = finish(process)
    # torchrun calls every SIGTERM a failure, whatever its ranks make of it.
    assert process.returncode != 0
    assert_saved_where_it_stopped(folder, lines, "SIGTERM")
    assert after(lines, "to go on: ") == f"torchrun --nproc-per-node 2 -m meshwright train tiny.yaml {LONG}"


def test_a_second_sigterm_ends_the_ranks_at_once(folder):
    process, _ = start(folder, "meshwright", "train", "tiny.yaml", "--nproc-per-node", "2", LONG)
    ranks = psutil.Process(process.pid).children()
    for rank in ranks:
        rank.suspend()
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    for line in process.stdout:
        if "SIGTERM: the ranks finish their step and save" in line:
            break
    process.send_signal(signal.SIGTERM)
    # Ranks that die before the launcher has heard of the signal would be its news instead.
    time.sleep(2)
    for rank in ranks:
        rank.kill()
    lines = finish(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert any(line.startswith("last complete checkpoint: run/checkpoints/step-") for line in lines)
    assert json.loads((folder / "run" / "run.json").read_text())["starts"]
