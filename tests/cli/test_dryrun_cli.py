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
    assert out.splitlines()[0].startswith("stage 0 worst: ")
    assert "fits a100-80g" in out.splitlines()[0]
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("rank")] == [
        "rank 0, stage 0 (layers 0-1)",
        "rank 1, stage 1 (layers 2-3)",
    ]


def test_parts_add_up_and_1f1b_holds_more_on_the_first_stage(dryrun) -> None:
    code, out, _ = dryrun("--all-stages", "--json")
    assert code == 0
    first, last = json.loads(out)
    for stage in (first, last):
        assert sum(stage["peak"]["categories"].values()) == stage["allocated"]
        assert stage["reserved"]["native"] >= stage["allocated"]
    kept = [stage["phases"]["forward"]["categories"]["saved activations"] for stage in (first, last)]
    assert kept[0] > 1.5 * kept[1]


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
