"""Run Meshwright's commands as a user would, show them, and read what they leave behind."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from meshwright.launch.console import Console

STOP_SECONDS = 60
# The quickstart is about processes on the CPU, also on a machine with accelerators.
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": ""}


class StepFailed(Exception):
    """A step of the quickstart did not do what it should; the message is one line."""


def run(folder: Path, *arguments: str) -> None:
    """Run ``meshwright`` in ``folder``, its output on this terminal. Raises StepFailed."""
    show(arguments)
    code = subprocess.run(_command(arguments), cwd=folder, env=_environment(), check=False).returncode
    if code:
        raise StepFailed(f"meshwright {shlex.join(arguments[:2])} ended with exit code {code}")


def output(folder: Path, *arguments: str) -> str:
    """Run ``meshwright`` in ``folder`` and return what it prints on standard output. Raises StepFailed."""
    show(arguments)
    done = subprocess.run(
        _command(arguments), cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise StepFailed(f"meshwright {arguments[0]} ended with exit code {done.returncode}")
    return done.stdout


def show(arguments: Sequence[str]) -> None:
    """Print a command so that it can be typed."""
    print(f"$ meshwright {shlex.join(arguments)}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """How a training that was stopped ended: exit code, the processes it had, and those that were left."""

    code: int
    processes: int
    left: list[int] = field(default_factory=list)


def train(
    folder: Path, arguments: Sequence[str], *, metrics: Path, steps: int, stop: Callable[[], bool] | None = None
) -> Stopped:
    """Run ``meshwright train`` with a progress bar on a terminal; send it Ctrl-C once ``stop`` says so.

    Args:
        metrics: the run's metrics.jsonl, for the bar.
        steps: optimizer steps of the whole run, for the bar.
    """
    show(arguments)
    console = Console(metrics, steps)
    console.start()
    process = subprocess.Popen(
        _command(arguments), cwd=folder, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    reader = threading.Thread(target=_relay, args=(process, console), daemon=True)
    reader.start()
    family: list[psutil.Process] = []
    try:
        while process.poll() is None:
            console.tick()
            if stop is not None and not family and stop():
                family = psutil.Process(process.pid).children(recursive=True)
                console.line(f"(the quickstart presses Ctrl-C here: SIGINT to process {process.pid})")
                process.send_signal(signal.SIGINT)
            time.sleep(0.05)
    except KeyboardInterrupt:
        # The terminal has sent Ctrl-C to the launcher too: let it end its ranks and say so.
        process.wait(STOP_SECONDS)
        raise
    finally:
        if process.poll() is None:
            process.terminate()
        reader.join(STOP_SECONDS)
        console.tick()
        console.stop()
    left = [member.pid for member in family if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]
    return Stopped(code=process.returncode, processes=len(family), left=left)


def _relay(process: "subprocess.Popen[str]", console: Console) -> None:
    """Show the lines of a training, all but the resolved config: that one is a file in the run's folder too."""
    hidden = 0
    assert process.stdout is not None
    for line in process.stdout:
        text = line.rstrip("\n")
        if "config| " in text:
            hidden += 1
            continue
        if hidden:
            console.line(f"({hidden} lines with the resolved config are left out here; they are in config.yaml)")
            hidden = 0
        console.line(text)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "meshwright", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, **CPU_ONLY}


@dataclass(frozen=True, kw_only=True)
class Legs:
    """Metrics of a run that was stopped and resumed: one record for each step, and evaluations apart."""

    first: dict[int, dict[str, float]]
    second: dict[int, dict[str, float]]
    evaluations: dict[int, float]

    def common(self) -> list[int]:
        """Steps that both legs made: the first one after the checkpoint, until it was stopped."""
        return sorted(self.first.keys() & self.second.keys())


def read_metrics(path: Path) -> Legs:
    """Read metrics.jsonl; a second leg begins where the step number goes back."""
    legs: list[dict[int, dict[str, float]]] = [{}, {}]
    evaluations: dict[int, float] = {}
    last = at = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        record = _record(line)
        step = int(record.get("step", 0))
        if "val/loss" in record:
            evaluations[step] = record["val/loss"]
        if "train/loss" not in record:
            continue
        at = 1 if step <= last else at
        last = step
        legs[at][step] = record
    return Legs(first=legs[0], second=legs[1], evaluations=evaluations)


def _record(line: str) -> dict[str, float]:
    """One line as a record; empty for the line that a stopped process did not finish."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
