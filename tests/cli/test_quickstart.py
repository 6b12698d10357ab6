"""The quickstart in small: the same script, fewer steps and less text."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, examples, without_numbers

SCRIPT = ROOT / "quickstart" / "run.py"
SMALL = ("--steps", "12", "--corpus-mb", "0.7", "--vocab-size", "512")
# An untrained model is at ln 512 = 6.24.
BOUND = "5.9"
METRIC = re.compile(r"^\| `((?:train|val|speed|memory|checkpoint)/\w+)` \|", re.MULTILINE)


def quickstart(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--folder", str(folder), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "120"},
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that a quickstart left, and all that it printed."""
    folder = tmp_path_factory.mktemp("quickstart") / "run"
    done = quickstart(folder, *SMALL, "--max-loss", BOUND)
    assert done.returncode == 0, done.stdout
    return folder, done.stdout


def test_it_trains_stops_resumes_and_samples(tour: tuple[Path, str]) -> None:
    _, printed = tour
    assert "stopped by Ctrl-C; all ranks have ended" in printed
    assert "all 4 processes of the run have ended; the checkpoint of step 4 is complete" in printed
    on_both = re.findall(r"step (\d+): loss ([\d.]+) on tensor 2 x pipeline 2, ([\d.]+) on data 2", printed)
    assert [int(step) for step, _, _ in on_both][:3] == [5, 6, 7]
    for _, before, after in on_both:
        assert float(before) == pytest.approx(float(after), abs=1e-3)
    assert "What to try next" in printed


def test_its_numbers_are_those_of_the_run(tour: tuple[Path, str]) -> None:
    folder, printed = tour
    records = [json.loads(line) for line in (folder / "runs/quickstart/metrics.jsonl").read_text().splitlines()]
    final = next(record for record in reversed(records) if "val/loss" in record)
    assert f"held-out loss at the end       {final['val/loss']:.3f} (asked for: below {BOUND})" in printed
    assert f"tokens trained on              {12 * 16 * 256:,} in 12 steps" in printed


def test_the_readme_shows_what_it_prints(tour: tuple[Path, str]) -> None:
    """Line by line and in order, but for the numbers."""
    printed = iter([without_numbers(line) for line in tour[1].splitlines()])
    shown = [block for block in examples(ROOT / "README.md") if block.mark == "quickstart"]
    assert shown
    for line in "".join(block.text for block in shown).splitlines():
        assert line == "..." or without_numbers(line) in printed, f"not printed, or not in this order: {line}"


def test_every_metric_is_documented(tour: tuple[Path, str]) -> None:
    lines = (tour[0] / "runs/quickstart/metrics.jsonl").read_text().splitlines()
    written = {name for line in lines for name in json.loads(line)} - {"step"}
    documented = set(METRIC.findall((ROOT / "docs" / "training.md").read_text(encoding="utf-8")))
    assert written <= documented
    only_elsewhere = {
        "train/unsupervised_steps",
        "train/loss_scale",
        "train/skipped_steps",
        "speed/mfu_pct",
        "memory/predicted_gib",
        "memory/predicted_error_pct",
    }
    assert documented - written == only_elsewhere


def test_a_held_out_loss_that_is_wrong_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import commands
    import run as script

    for name in ("commands", "corpus", "run"):
        monkeypatch.delitem(sys.modules, name)
    legs = commands.Legs(first={}, second={}, evaluations={12: 5.0})
    quick = script.Quickstart(
        folder=Path(), steps=12, corpus_bytes=1, vocab_size=512, max_loss=4.5, prompt="", seconds={}
    )
    with pytest.raises(commands.StepFailed, match=r"is 5\.0000, not below 4\.5"):
        script.check_held_out(quick, 5.0, legs)
    with pytest.raises(commands.StepFailed, match=r"one process finds .* 4\.0000, the training found 5\.0000"):
        script.check_held_out(quick, 4.0, legs)


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = quickstart(tmp_path, *SMALL)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith(f"quickstart: {tmp_path} exists and was not made by the quickstart")
    assert (tmp_path / "mine.txt").read_text() == "mine"
