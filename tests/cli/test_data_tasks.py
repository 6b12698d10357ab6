"""``data prepare`` shared out to tasks, interrupted, or out of space."""

import gzip
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from small_shards import finished_command, run_command, start_command

from meshwright.data.errors import DataError
from meshwright.data.preparation.stages import Task

GOOD = "Number {} of these letters is for the people that have to walk with care. It has a second line. "


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Documents of which every seventh repeats another."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": GOOD.format(n % 7 and n) * 3}) + "\n" for n in range(60)))
    return path


def command(source: Path, output: Path, *options: Any) -> list[Any]:
    settings = ("--train-tokenizer", 280, "--deduplicate", "exact", "--workers", 0)
    return ["data", "prepare", source, "--output", output, *settings, *options]


def outputs(prefix: Path) -> dict[str, bytes]:
    return {path.name[len(prefix.name) :]: path.read_bytes() for path in prefix.parent.glob(f"{prefix.name}.*")}


@pytest.fixture
def expected(source: Path, tmp_path: Path) -> dict[str, bytes]:
    """What one run writes."""
    assert run_command(command(source, tmp_path / "one"), tmp_path / "one-log").returncode == 0
    return outputs(tmp_path / "one")


def test_tasks_at_the_same_time_and_the_rest_write_the_bytes_of_one_run(
    source: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    output = tmp_path / "shared"
    stages = []
    while True:
        logs = [tmp_path / f"log{k}" for k in range(2)]
        tasks = [
            start_command(command(source, output, "--task", f"{k}/2", "--json"), log) for k, log in enumerate(logs)
        ]
        for task in tasks:
            task.join(60)
        both = [finished_command(task, log) for task, log in zip(tasks, logs, strict=True)]
        assert [done.returncode for done in both] == [0, 0]
        reports = [json.loads(done.stdout) for done in both]
        if not reports[0]["stage"]:
            break
        stages.append(reports[0]["stage"])
        # The last to end has seen all shards finished.
        assert reports[0]["shards"] in [report["finished"] for report in reports]
    assert stages == ["signing", "comparing", "finding duplicates", "training the tokenizer", "tokenizing"]
    done = run_command(command(source, output, "--task", "0/2"), tmp_path / "log")
    assert done.stdout == "next: run the command without --task; it does the rest\n"
    assert run_command(command(source, output, "--workers", 2), tmp_path / "log").returncode == 0
    assert outputs(output) == expected
    assert "exists already" in run_command(command(source, output, "--task", "0/2"), tmp_path / "log").stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_task_tells_of_results_that_it_cannot_go_on_from(source: Path, tmp_path: Path) -> None:
    words = command(source, tmp_path / "c", "--task", "0/2")
    assert "note:" not in run_command(words, tmp_path / "log").stderr
    os.utime(source)
    assert "has results of other inputs, settings or versions" in run_command(words, tmp_path / "log").stderr


def test_a_task_keeps_the_whole_command_out_and_leaves_what_it_has_done(source: Path, tmp_path: Path) -> None:
    # Billions of blank lines: reading them lasts until the interrupt.
    (tmp_path / "endless.jsonl.gz").write_bytes(gzip.compress(b"\n" * (1 << 26)) * 200)
    words = ["data", "prepare", source, tmp_path / "endless.jsonl.gz", *command(source, tmp_path / "c")[3:]]
    task = start_command([*words, "--task", "0/1", "--workers", 1], tmp_path / "task")
    workplace = tmp_path / ".c.partial"
    deadline = time.monotonic() + 30
    while len(list(workplace.glob("signatures-*/*.npy"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    whole = run_command(words, tmp_path / "log")
    assert (whole.returncode, whole.stderr.splitlines()[-1]) == (
        2,
        f"meshwright data prepare: {workplace}: another process prepares this corpus",
    )
    assert task.pid is not None
    os.kill(task.pid, signal.SIGINT)
    task.join(30)
    done = finished_command(task, tmp_path / "task")
    assert done.returncode == 130
    last = done.stderr.splitlines()[-1]
    start = f"meshwright data prepare: interrupted; no corpus file was written; kept in {workplace}: "
    assert last.startswith(start)
    assert last.endswith(" shards signed; the same command goes on from there")


@pytest.mark.parametrize(("most_bytes", "stage"), [(1500, "duplicates"), (9000, "corpus")])
def test_a_full_disk_is_told_by_path_and_gone_on_from(
    source: Path, tmp_path: Path, expected: dict[str, bytes], most_bytes: int, stage: str
) -> None:
    output = tmp_path / "c"
    done = run_command(command(source, output), tmp_path / "log", most_bytes=most_bytes)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"meshwright data prepare: {tmp_path}/.c.partial/{stage}-")
    assert last.endswith(": File too large")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("c.*"))
    assert run_command(command(source, output), tmp_path / "log").returncode == 0
    assert outputs(output) == expected


@pytest.mark.parametrize("task", ["2/2", "1", "-1/2", "a/b"])
def test_tasks_that_are_none_are_refused(task: str) -> None:
    with pytest.raises(DataError, match=rf"task '{task}' must be K/N with K from 0 to N - 1"):
        Task.parse(task)
