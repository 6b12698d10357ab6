"""Steps that must not count: non-finite values, overflows, batches without supervised tokens."""

import json
from pathlib import Path

import pytest

from meshwright.data.order import GlobalOrder
from ranks import run_ranks
from trainer_runs import (
    GLOBAL_BATCH,
    SAMPLES,
    SEQ_LENGTH,
    Disturbance,
    Outcome,
    Spoil,
    metrics,
    ranks_of,
    train,
    write_config,
)

DOWN = "layers.2.mlp.down_proj"
FP16 = {"amp_level": "O2", "dtype": "float16"}


def go(folder: Path, layout: str, disturbance: Disturbance, *overrides: str, **sections) -> list[Outcome]:
    return run_ranks(train, ranks_of(layout), write_config(folder, layout, **sections), overrides, disturbance)


@pytest.mark.parametrize(
    ("layout", "rank", "value"),
    [
        ("one", 0, float("inf")),
        ("dp2", 1, float("nan")),
        ("dp2_zero3", 1, float("nan")),
        ("tp2", 1, float("nan")),
        ("tp2_seq", 1, float("inf")),
        ("pp2", 1, float("nan")),
    ],
)
def test_a_bad_weight_stops_the_run_and_names_step_rank_phase_and_module(tmp_path, layout, rank, value):
    spoil = Spoil(rank=rank, parameter=f"{DOWN}.weight", value=value)
    outcomes = go(tmp_path, layout, Disturbance(spoil=spoil))
    for outcome in outcomes:
        assert outcome.error is not None
        assert outcome.error.startswith("step 3: loss nan, gradient norm")
        # Gathered by ZeRO, a weight is bad on every rank of its group at once; the first one speaks.
        named = 0 if layout == "dp2_zero3" else rank
        assert f"rank {named}, forward of module {DOWN}" in outcome.error
        # Step 4 was on its way before the numbers of step 3 were read; neither changed a bit.
        assert len(outcome.samples) == 4
        assert outcome.digests[2] == outcome.digests[3] == outcome.digests[4] != outcome.digests[1]
    assert [line["step"] for line in metrics(tmp_path / "out")] == [1, 2]
    assert list((tmp_path / "out" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("layout", ["one", "pp2"])
def test_a_bad_embedding_row_stops_the_run_when_its_token_comes(tmp_path, layout):
    spoil = Spoil(rank=0, parameter="embedding.weight", value=float("inf"), row=0, step=2)
    (outcome, *_) = go(tmp_path, layout, Disturbance(spoil=spoil))
    assert outcome.error is not None
    assert outcome.error.startswith("step 2: loss nan")
    assert "rank 0, forward of module embedding" in outcome.error


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recompute", [{}, {"recompute": True}, {"select_recompute": ["elementwise"]}])
def test_a_bad_weight_is_found_in_compiled_and_recomputed_blocks(tmp_path, compiled, recompute):
    spoil = Spoil(rank=0, parameter=f"{DOWN}.weight", value=float("nan"))
    sections = {"train": {"compile": compiled}, "recompute_config": recompute}
    (outcome,) = go(tmp_path, "one", Disturbance(spoil=spoil, compile_backend="aot_eager"), **sections)
    assert outcome.error is not None
    assert f"rank 0, forward of module {DOWN}, whose weights are not finite" in outcome.error


@pytest.mark.parametrize("layout", ["one", "pp2", "dp2tp2"])
def test_an_overflow_skips_the_step_is_counted_and_halves_the_scale(tmp_path, capsys, layout):
    disturbance = Disturbance(scale=2.0**30)
    sections = {"amp_config": FP16, "train": {"train_steps": 20}}
    outcomes = go(tmp_path, layout, disturbance, **sections)
    lines = {int(line["step"]): line for line in metrics(tmp_path / "out")}
    skipped = [
        step
        for step in lines
        if lines[step]["train/skipped_steps"] > lines.get(step - 1, {}).get("train/skipped_steps", 0)
    ]
    assert skipped == list(range(3, 3 + len(skipped)))
    assert 2 <= len(skipped) < 16
    assert lines[20]["train/skipped_steps"] == len(skipped)
    assert lines[3]["train/loss_scale"] == 2.0**30
    for step in skipped:
        assert lines[step + 1]["train/loss_scale"] == lines[step]["train/loss_scale"] / 2
        assert "train/grad_norm" not in lines[step]
        assert lines[step]["train/loss"] < 10
    for outcome in outcomes:
        same = [step for step in range(1, 21) if outcome.digests[step - 1] == outcome.digests[step]]
        assert same == skipped
        assert outcome.error is None
    log = capsys.readouterr().out
    assert log.count("overflow: step skipped") == len(skipped)


def test_twenty_overflows_in_a_row_stop_the_run(tmp_path):
    sections = {"amp_config": FP16, "train": {"train_steps": 40}}
    for outcome in go(tmp_path, "dp2", Disturbance(scale=2.0**100), **sections):
        assert outcome.error is not None
        assert outcome.error.startswith("step 22: 20 steps in a row overflowed")
        assert len(set(outcome.digests[2:])) == 1
    assert [line["step"] for line in metrics(tmp_path / "out")] == list(range(1, 22))


def test_metrics_are_strict_json_whatever_the_values(tmp_path):
    go(tmp_path, "one", Disturbance(scale=2.0**30), amp_config=FP16)

    def refuse(name: str) -> None:
        raise ValueError(name)

    for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def batch_of(step: int) -> tuple[int, ...]:
    return tuple(GlobalOrder(SAMPLES, 7).samples(range((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH)).tolist())


@pytest.mark.parametrize("layout", ["one", "dp2_zero1", "tp2_seq", "pp2"])
@pytest.mark.parametrize("chunk", [None, 8])
def test_b15_a_batch_without_supervised_tokens_is_skipped_and_shown_as_such(tmp_path, capsys, layout, chunk):
    outcomes = go(tmp_path, layout, Disturbance(masked=batch_of(3)), train={"loss_chunk_tokens": chunk})
    lines = metrics(tmp_path / "out")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        empty = line["step"] == 3
        assert ("train/loss" in line, "train/grad_norm" in line) == (not empty, not empty)
        assert line.get("train/unsupervised_steps") == (1 if line["step"] >= 3 else None)
        assert line["train/supervised_tokens"] == (line["step"] - (line["step"] >= 3)) * GLOBAL_BATCH * SEQ_LENGTH
    log = capsys.readouterr().out
    (shown,) = [text for text in log.splitlines() if "step 3/6" in text]
    assert "no supervised tokens" in shown
    assert "loss" not in shown
    for outcome in outcomes:
        assert [outcome.digests[s - 1] == outcome.digests[s] for s in range(1, 7)] == [s == 3 for s in range(1, 7)]
        assert all(weight.isfinite().all() for weight in outcome.weights.values())


@pytest.mark.parametrize("layout", ["dp2", "dp2pp2_zero1"])
def test_b15_masked_micro_batches_and_data_ranks_count_for_nothing(tmp_path, layout):
    """The first data rank of step 2 and one micro-batch of step 3 are masked: equal to the same on one process."""
    masked = batch_of(2)[:4] + batch_of(3)[2:4]
    rows = []
    for name in ("one", layout):
        go(tmp_path, name, Disturbance(masked=masked), output_dir=str(tmp_path / name))
        rows.append([(line["train/loss"], line["train/grad_norm"]) for line in metrics(tmp_path / name)])
    for (loss, norm), (expected, expected_norm) in zip(*reversed(rows), strict=True):
        assert loss == pytest.approx(expected, abs=1e-4)
        assert norm == pytest.approx(expected_norm, rel=1e-3)
