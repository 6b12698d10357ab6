"""The files of ``meshwright dryrun``: a page, and snapshots for PyTorch's memory viewer."""

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from meshwright.cli import main
from meshwright.dryrun.run import DryRun, dry_run
from meshwright.dryrun.tape import PHASES

SMALL = """
model: {num_layers: 4, hidden_size: 64, num_heads: 2, num_kv_heads: 2, intermediate_size: 128, vocab_size: 256}
parallel_config: {pipeline_stage: 2, micro_batch_num: 3}
train: {seq_length: 32, micro_batch_size: 2}
amp_config: {amp_level: O2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, a config of two stages in it."""
    (tmp_path / "small.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def charts(page: str) -> list[ElementTree.Element]:
    """The drawings of a page, read as XML."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def words(chart: ElementTree.Element, kind: str) -> list[str]:
    """Text in elements of one class."""
    return ["".join(item.itertext()) for item in chart.iter() if item.get("class") == kind]


def test_page_and_snapshots_of_every_stage(folder: Path, capsys: pytest.CaptureFixture) -> None:
    code = main(["dryrun", "small.yaml", "--all-stages", "--html", "page.html", "--snapshot", "step.pickle"])
    assert code == 0
    captured = capsys.readouterr()
    wrote = re.findall(r"wrote (\S+)", captured.err)
    assert wrote == ["page.html", "step-stage0.pickle", "step-stage1.pickle"]
    page = (folder / "page.html").read_text()
    assert not re.search(r"https?:|<script|<link|<img|@import|url\(", page)
    assert len(page) < 1_000_000
    bars, *steps, _time = charts(page)
    assert [text.text for text in bars.iter("text") if text.get("text-anchor") == "end"][-2:] == ["stage 0", "stage 1"]
    assert len(steps) == 2
    for chart in steps:
        assert words(chart, "on-forward") == words(chart, "on-backward") == ["0", "1", "2"]
        slices = words(chart, "slice")
        assert "forward, micro-batch 0" in slices[0]
        assert "optimizer" in slices[-1]
    for name in wrote[1:]:
        assert len(pickle.loads((folder / name).read_bytes())["device_traces"][0]) > 100


def test_the_peak_of_the_page_is_the_one_printed(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["dryrun", "small.yaml", "--target", "cpu", "--html", "page.html"]) == 0
    printed = re.search(r"peak (\S+ MiB) in (.*)", capsys.readouterr().out)
    assert printed
    chart, _time = charts((folder / "page.html").read_text())
    assert f"peak {printed[1]}: {printed[2]}" in "".join(chart.itertext())
    tops = [float(size) for text in words(chart, "slice") for size in re.findall(r"(\S+) MiB at most here", text)]
    assert f"{max(tops):.2f} MiB" == printed[1]


def test_an_extrapolated_step_has_bars_and_says_why_no_curve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def estimated(*arguments: Any, **options: Any) -> DryRun:
        return replace(dry_run(*arguments, **options), execution=None, estimated=True)

    monkeypatch.setattr("meshwright.dryrun.run.dry_run", estimated)
    assert main(["dryrun", "small.yaml", "--fast", "--html", "page.html"]) == 0
    page = (folder / "page.html").read_text()
    assert "No curve: --fast" in page
    bars, _time = charts(page)
    assert [text.text for text in bars.iter("text") if text.text in PHASES] == ["forward", "backward", *PHASES[3:]]
    assert "Modules that hold most at the peak" in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--html", "nowhere/page.html"), "--html nowhere/page.html: cannot be written: no such folder"),
        (("--html", "."), "--html .: cannot be written: it is a folder"),
        (("--snapshot", "nowhere/step.pickle"), "--snapshot nowhere/step.pickle: cannot be written: no such folder"),
        (("--snapshot", "step.pickle", "--fast"), "--snapshot needs the whole step"),
        (("--snapshot", "step.pickle", "--target", "cpu"), "a CPU has none"),
    ],
)
def test_refused_before_the_run(
    folder: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.setattr("meshwright.dryrun.run.dry_run", None)
    assert main(["dryrun", "small.yaml", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["small.yaml"]
