"""``meshwright dryrun`` as users start it."""

import json
from pathlib import Path

import pytest

from meshwright.cli import main

SMALL = """
model: {num_layers: 4, hidden_size: 256, num_heads: 4, num_kv_heads: 4, intermediate_size: 512, vocab_size: 512}
parallel_config: {pipeline_stage: 2, micro_batch_num: 4}
train: {seq_length: 256, micro_batch_size: 2}
amp_config: {amp_level: O2}
"""


@pytest.fixture
def dryrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs the verb on a small model of two stages: (exit code, stdout, stderr)."""
    (tmp_path / "small.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["dryrun", "small.yaml", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_every_stage_with_the_worst_first(dryrun) -> None:
    code, out, _ = dryrun("--all-stages", "--hardware", "a100-80g")
    assert code == 0
    first = out.splitlines()[0]
    assert first.startswith("stage 0 worst: ")
    assert "2.00 GiB for device context and communicators" in first
    assert "fits a100-80g (79.15 GiB usable)" in first
    table = out.split("stages, MiB\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[:3] for line in table[1:]] == [["0", "0", "0-1"], ["1", "1", "2-3"]]
    assert "rank 0, stage 0 (layers 0-1): peak" in out
    assert "rank 1, stage 1" not in out


def test_json_holds_what_the_text_shows_and_parts_add_up(dryrun) -> None:
    code, out, _ = dryrun("--all-stages", "--json", "parallel_config.data_parallel=2")
    assert code == 0
    found = json.loads(out)
    assert found["worst"] == {"rank": 0, "stage": 0}
    for stage in found["ranks"]:
        assert sum(stage["peak"]["categories"].values()) == stage["allocated"]
        assert stage["reserved"]["native"] >= stage["allocated"]
        usable = found["hardware"]["usable_memory"] - stage["outside_allocator"]
        assert stage["spare"] == usable - stage["reserved"]["native"]
    assert sum(found["step_time"]["terms"].values()) == pytest.approx(found["step_time"]["seconds"])
    assert {message["group"] for message in found["ranks"][0]["collectives"]} == {"all", "data", "pipeline"}


def test_levers_save_what_their_own_method_says(dryrun) -> None:
    small = ("model.num_layers=1", "parallel_config.pipeline_stage=1", "parallel_config.data_parallel=2")
    code, out, _ = dryrun("--json", "--levers", "--hardware", "cpu", *small)
    assert code == 0
    found = json.loads(out)["changes"]
    tried = [row for row in found["changes"] if row["dry_run"]]
    assert len(tried) == 3
    for row in tried:
        assert row["dry_run"]["saves"] == found["dry_run_needed"] - row["dry_run"]["needed"]
        assert row["dry_run"]["saves"] == pytest.approx(row["computed"]["saves"], abs=0.1 * found["dry_run_needed"])
    for row in found["changes"]:
        assert row["computed"]["saves"] == pytest.approx(found["computed_needed"] - row["computed"]["needed"])


def test_a_rank_that_does_not_fit_is_exit_code_1(dryrun) -> None:
    wide = ("hidden_size=8192", "num_heads=64", "num_kv_heads=64", "intermediate_size=28672")
    code, out, _ = dryrun(*(f"model.{size}" for size in wide), "--hardware", "rtx-4090")
    assert code == 1
    assert "does not fit rtx-4090" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rank", "2"), "rank 2 is outside 0..1"),
        (("--world-size", "3"), "start on 2 or 4 devices"),
        (("--world-size", "3", "parallel_config.data_parallel=1"), "--world-size: 3 is not"),
        (("--hardware", "a100-81g"), "a100-80g"),
        (("train.compile=true",), "compiled blocks is not supported"),
        (("parallel_config.context_parallel=2",), "context_parallel"),
    ],
)
def test_wrong_requests_are_told_apart(dryrun, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = dryrun(*arguments)
    assert code == 2
    assert says in err
    assert not out
