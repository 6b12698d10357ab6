"""The GPU check with a CPU in the GPU's place: everything but the calls of CUDA."""

import re
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
gpu_check = pytest.importorskip("benchmarks.gpu_check")
SMALLER = ("model.num_layers=2", "model.hidden_size=64", "model.vocab_size=512", "train.seq_length=64")


@pytest.fixture
def bench(tmp_path: Path):
    return gpu_check.Bench("cpu", tmp_path, time.monotonic() + 300, SMALLER)


def test_predicted_and_measured_peaks_meet(bench) -> None:
    row = gpu_check.memory_row(bench, "loss in chunks")
    # gloo's thread may hold the number that it reduced last a moment longer.
    assert row["predicted"]["allocated"] == pytest.approx(row["measured"]["allocated"], abs=64)
    line = gpu_check.memory_line(row)
    assert re.fullmatch(r"loss in chunks: allocated [\d.]+ GiB predicted, .* \([+-]0\.00 %\)", line)
    assert len(row["measured"]["seconds"]) == gpu_check.MEMORY_STEPS


def test_a_run_that_fails_is_told_and_the_others_go_on(bench, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(gpu_check, "CASES", {"late": ()})
    late = gpu_check.Bench("cpu", bench.folder, time.monotonic() - 1, SMALLER)
    report = gpu_check.checked(late, "A CPU", 2**34, speed=False)
    assert report["failed"] == {"late": "time is up"}
    assert "late: failed: time is up" in capsys.readouterr().out


def test_speed_is_of_the_largest_micro_batch_that_fits(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(_self, _path: Path, words: list[str], steps: int) -> dict:
        asked.append(words)
        return {"seconds": [9.0] * gpu_check.WARM_UP + [0.5] * (steps - gpu_check.WARM_UP)}

    monkeypatch.setattr(gpu_check.Bench, "measured", measured)
    with pytest.raises(gpu_check.RunFailed, match=r"needs .* GiB of 0\.0 GiB"):
        gpu_check.speed_row(bench, compiled=False, peak_flops=1e12, device_bytes=2**10)
    row = gpu_check.speed_row(bench, compiled=True, peak_flops=1e12, device_bytes=2**34)
    assert row["micro_batch_size"] == 8
    assert asked[-1][-1] == "train.compile=true"
    assert row["tokens_per_second"] == 8 * 64 / 0.5
    assert row["mfu"] == pytest.approx(row["flops_per_second"] / 1e12)
    assert "compiled, micro-batch 8: 500 ms a step" in gpu_check.speed_line(row)


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert gpu_check.main() == 0
    assert capsys.readouterr().out == "gpu_check: skipped: torch sees no CUDA device here\n"
