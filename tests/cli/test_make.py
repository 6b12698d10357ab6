"""make, and how fast the command line answers."""

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = ("help", "setup", "quickstart", "data", "test", "lint", "bench", "docs", "lock", "clean")
SECONDS = 0.3


def make(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", [(), ("help",)])
def test_help_lists_every_command(arguments: tuple[str, ...]) -> None:
    done = make(*arguments)
    assert done.returncode == 0, done.stderr
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert set(TARGETS) <= set(listed)


def test_a_failing_check_fails_the_tests(tmp_path: Path) -> None:
    """make test stops at the first thing that fails, with an exit code that says so."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for stamp in (".dev", ".train"):
        (tmp_path / stamp).touch()
    for name, code in (("python", 0), ("ruff", 0), ("mypy", 1)):
        (tools / name).write_text(f"#!/bin/sh\necho ran {name}\nexit {code}\n")
        (tools / name).chmod(0o755)
    done = make("test", f"VENV={tmp_path}")
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "ran mypy"


def test_without_a_new_enough_python_it_says_so(tmp_path: Path) -> None:
    done = make("setup", f"VENV={tmp_path / 'venv'}", "PYTHON=")
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr


def test_meshwright_help_answers_within_0_3_seconds() -> None:
    assert statistics.median(processor_seconds("-m", "meshwright", "--help") for _ in range(5)) < SECONDS


def processor_seconds(*arguments: str) -> float:
    """User and system time of one Python process; the wall clock would measure the machine's other work too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
