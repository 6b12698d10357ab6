"""The trainer from end to end: repeat, resume, report."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from meshwright.checkpoint.errors import CheckpointError
from meshwright.config.load import load_config
from meshwright.config.run import config_from_log, resolve
from meshwright.data.blend import blend
from meshwright.data.order import GlobalOrder
from meshwright.launch.agreement import DisagreementError
from meshwright.spec.schedule import learning_rate
from meshwright.train.inputs import ResumeError
from ranks import run_ranks
from trainer_runs import (
    GLOBAL_BATCH,
    SAMPLES,
    SEQ_LENGTH,
    Disturbance,
    InterruptedRun,
    Outcome,
    by_step,
    global_samples,
    metrics,
    ranks_of,
    train,
    write_config,
    write_corpus,
)

TRAINED = ("train/loss", "train/grad_norm", "train/lr", "train/tokens", "train/supervised_tokens")
DROPOUT = {"hidden_dropout": 0.1}


def go(folder: Path, layout: str, *overrides: str, disturbance: Disturbance | None = None, **sections) -> list[Outcome]:
    return run_ranks(train, ranks_of(layout), write_config(folder, layout, **sections), overrides, disturbance)


def stop(folder: Path, layout: str, step: int, scale: float | None = None, **sections) -> None:
    """Train until a failure right after a step; ``scale`` is set as the loss scale before step 3."""
    with pytest.raises(InterruptedRun, match=f"after step {step}"):
        go(folder, layout, disturbance=Disturbance(stop_after=step, scale=scale), **sections)


def assert_equal_weights(a: list[Outcome], b: list[Outcome]) -> None:
    for one, other in zip(a, b, strict=True):
        assert one.weights.keys() == other.weights.keys()
        for name, weight in one.weights.items():
            assert weight.equal(other.weights[name]), name


def losses(output_dir: Path) -> list[float]:
    return [loss for (loss,) in by_step(output_dir, "train/loss").values()]


def test_the_saved_config_and_the_one_in_the_log_repeat_the_run_bit_for_bit(tmp_path, capsys):
    first = go(tmp_path, "dp2tp2_zero2_seq", model=DROPOUT)
    log = capsys.readouterr().out
    saved = tmp_path / "out" / "config.yaml"
    assert config_from_log(log) == saved.read_text()
    again = run_ranks(train, 4, saved, (f"output_dir={tmp_path / 'again'}",))
    assert by_step(tmp_path / "out", *TRAINED) == by_step(tmp_path / "again", *TRAINED)
    assert len(losses(tmp_path / "again")) == 6
    assert_equal_weights(first, again)
    changed = (tmp_path / "again" / "config.yaml").read_text()
    assert changed.replace(str(tmp_path / "again"), str(tmp_path / "out")) == saved.read_text()


@pytest.mark.parametrize(
    ("layout", "workers"),
    [("one", 0), ("one", 2), ("dp2_zero1", 2), ("tp2_seq", 0), ("tp2", 0), ("dp2pp2_zero1", 0)],
)
def test_b16_resumed_twice_is_the_run_without_a_break_bit_for_bit(tmp_path, layout, workers):
    sections = {
        "model": DROPOUT,
        "train": {"train_steps": 30},
        "dataset": {"num_parallel_workers": workers},
        "checkpoint": {"save_checkpoint_steps": 10},
    }
    scale = None
    if layout == "dp2_zero1":
        # The loss scale is part of the state; another one than a run begins with tells whether it comes back.
        sections["amp_config"], scale = {"amp_level": "O2", "dtype": "float16"}, 2.0**12
    straight = go(
        tmp_path, layout, output_dir=str(tmp_path / "straight"), disturbance=Disturbance(scale=scale), **sections
    )
    # Both failures lose steps since the last checkpoint: they are made again.
    stop(tmp_path, layout, 13, scale, **sections)
    stop(tmp_path, layout, 22, **sections)
    last = go(tmp_path, layout, **sections)
    steps = by_step(tmp_path / "out", *TRAINED, "train/loss_scale")
    assert list(steps) == list(range(1, 31))
    assert steps == by_step(tmp_path / "straight", *TRAINED, "train/loss_scale")
    assert steps[30][-1] == scale
    assert_equal_weights(straight, last)
    order = global_samples(straight)
    assert global_samples(last) == order[20:]
    # 100 samples are 12.5 steps: two epoch borders lie in the run, and each epoch has every sample once.
    flat = [sample for step in order for sample in step]
    assert sorted(flat[:SAMPLES]) == sorted(flat[SAMPLES : 2 * SAMPLES]) == list(range(SAMPLES))
    assert flat[:SAMPLES] != flat[SAMPLES : 2 * SAMPLES]
    starts = json.loads((tmp_path / "out" / "run.json").read_text())["starts"]
    resumed = [start["resumed_from"] and Path(start["resumed_from"]).name for start in starts]
    assert resumed == [None, "step-00000010", "step-00000020"]


@pytest.mark.parametrize("between", ["one", "dp2_zero1", "dp2tp2_zero2_seq", "pp2", "tp2pp2"])
def test_b17_resumed_on_another_layout_and_back(tmp_path, between):
    sections = {"train": {"train_steps": 15}, "checkpoint": {"save_checkpoint_steps": 5}}
    straight = go(tmp_path, "dp4_zero3", output_dir=str(tmp_path / "straight"), **sections)
    stop(tmp_path, "dp4_zero3", 5, **sections)
    stop(tmp_path, between, 10, **sections)
    last = go(tmp_path, "dp4_zero3", **sections)
    assert losses(tmp_path / "out") == pytest.approx(losses(tmp_path / "straight"), abs=1e-4)
    assert losses(tmp_path / "out")[-1] < losses(tmp_path / "out")[0] - 0.2
    rates = by_step(tmp_path / "out", "train/lr", "train/tokens", "train/supervised_tokens")
    assert rates == by_step(tmp_path / "straight", "train/lr", "train/tokens", "train/supervised_tokens")
    assert global_samples(last) == global_samples(straight)[10:]


def test_a_blend_is_the_same_stream_on_every_layout_and_after_a_resume(tmp_path, capsys):
    paths = [{"path": str(write_corpus(tmp_path / f"part{n}", 20 * n, seed=n)), "weight": 3 - n} for n in (1, 2)]
    sections = {"train": {"train_steps": 9}, "checkpoint": {"save_checkpoint_steps": 3}, "dataset": {"paths": paths}}
    straight = go(tmp_path, "one", output_dir=str(tmp_path / "straight"), **sections)
    log = capsys.readouterr().out
    assert "part1: 66.67%, 48 samples of 20, 2.40 epochs" in log
    (start,) = json.loads((tmp_path / "straight" / "run.json").read_text())["starts"]
    assert [line.split(", ")[-1] for line in start["data"][1:]] == ["2.40 epochs", "0.60 epochs"]
    sources = by_step(tmp_path / "straight", "train/loss/part1", "train/loss/part2")
    assert f"loss by source: part1 {sources[9][0]:.4f}  part2 {sources[9][1]:.4f}" in log
    drawn = blend([2, 1]).draws(np.arange(9 * GLOBAL_BATCH))[0].reshape(9, GLOBAL_BATCH).mean(axis=1)
    mean = [first + share * (second - first) for (first, second), share in zip(sources.values(), drawn, strict=True)]
    assert losses(tmp_path / "straight") == pytest.approx(mean, rel=1e-5)
    stop(tmp_path, "one", 3, **sections)
    last = go(tmp_path, "dp2pp2_zero1", **sections)
    assert global_samples(last) == global_samples(straight)[3:]
    assert losses(tmp_path / "out") == pytest.approx(losses(tmp_path / "straight"), abs=1e-4)
    go(tmp_path, "tp2_seq", "train.loss_chunk_tokens=7", output_dir=str(tmp_path / "split"), **sections)
    for name in ("out", "split"):
        found = by_step(tmp_path / name, "train/loss/part1", "train/loss/part2")
        assert np.abs(np.array(list(found.values())) - np.array(list(sources.values()))).max() < 1e-4
    other = [entry | {"weight": 1} for entry in paths]
    with pytest.raises(ResumeError, match="dataset fingerprint"):
        go(tmp_path, "one", **sections | {"dataset": {"paths": other}})


@pytest.mark.parametrize("layouts", [("tp2_seq", "tp2"), ("pp2_data_inside", "dp2pp2_zero1")])
def test_a_resume_that_moves_ranks_starts_dropout_anew(tmp_path, capsys, layouts):
    """Restored by rank number, generators would make ranks that share activations draw different masks."""
    before, after = layouts
    sections = {"model": DROPOUT, "checkpoint": {"save_checkpoint_steps": 3}}
    stop(tmp_path, before, 3, **sections)
    capsys.readouterr()
    go(tmp_path, after, **sections)
    assert "random numbers of dropout start anew" in capsys.readouterr().out


def test_a_resume_of_another_run_is_refused_with_every_difference(tmp_path):
    go(tmp_path, "one", checkpoint={"save_checkpoint_steps": 3})
    other = write_corpus(tmp_path / "other", seed=99)
    changes = ("seed=8", "model.hidden_size=64", f"dataset.paths=[{other}]", "train.global_batch_size=16")
    with pytest.raises(ResumeError, match="is a checkpoint of another run") as refused:
        go(tmp_path, "one", *changes)
    differences = [line.strip().split(":")[0] for line in str(refused.value).splitlines()[1:-1]]
    assert "seed: checkpoint 7, this run 8" in str(refused.value)
    assert differences == [
        "model.hidden_size",
        "model.head_dim",
        "seed",
        "train.global_batch_size",
        "dataset fingerprint",
    ]
    # Length, learning rate and layout may change: it stays the same run.
    go(tmp_path, "dp2", "train.train_steps=8", "optimizer.learning_rate=0.002")
    assert list(by_step(tmp_path / "out", "train/lr")) == list(range(1, 9))


def train_on_a_disk_of_its_own(config: Path, folder: Path) -> Outcome:
    os.chdir(folder / str(dist.get_rank()))
    return train(config)


def test_ranks_with_other_held_out_data_are_refused_before_the_first_step(tmp_path):
    for rank, samples in enumerate((13, 40)):
        (tmp_path / str(rank)).mkdir()
        write_corpus(tmp_path / str(rank) / "held", samples)
    config = write_config(tmp_path, "dp2", dataset={"eval_paths": ["held"]})
    with pytest.raises(DisagreementError, match=r"held-out fingerprint:\n    \w{64} on rank 0\n    \w{64} on rank 1"):
        run_ranks(train_on_a_disk_of_its_own, 2, config, tmp_path)
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_resume_never_and_resume_from_a_path(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        go(tmp_path, "one", f"checkpoint.resume={tmp_path / 'nowhere'}")
    straight = go(tmp_path, "one", "checkpoint.resume=never", checkpoint={"save_checkpoint_steps": 3})
    with pytest.raises(ResumeError, match=r"resume is never, but .* holds checkpoints \(step-00000006\)"):
        go(tmp_path, "one", "checkpoint.resume=never")
    source = tmp_path / "out" / "checkpoints" / "step-00000003"
    branch = go(tmp_path, "one", f"checkpoint.resume={source}", f"output_dir={tmp_path / 'branch'}")
    assert_equal_weights(straight, branch)
    whole, tail = (by_step(tmp_path / name, *TRAINED) for name in ("out", "branch"))
    assert tail == {step: whole[step] for step in (4, 5, 6)}
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("out", "branch")]
    assert records[0]["run_id"] != records[1]["run_id"]
    assert records[1]["starts"][0]["resumed_from"] == str(source)


EACH_STEP = {
    "train/loss",
    "train/grad_norm",
    "train/lr",
    "train/tokens",
    "train/supervised_tokens",
    "speed/tokens_per_s",
    "speed/tokens_per_s_per_device",
    "speed/supervised_tokens_per_s",
    "speed/step_ms",
    "speed/data_wait_pct",
    "memory/peak_gib",
    "memory/peak_pct",
}


@pytest.mark.parametrize("layout", ["one", "dp2_zero3", "tp2_seq", "pp2", "dp2pp2_zero1", "pp2_data_inside", "tp2pp2"])
def test_every_step_reports_every_metric_and_the_loss_of_one_process(tmp_path, capsys, layout):
    go(tmp_path, layout, monitor={"log_steps": 1})
    log = capsys.readouterr().out
    lines = metrics(tmp_path / "out")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert line.keys() >= EACH_STEP
        rate = GLOBAL_BATCH * SEQ_LENGTH / line["speed/step_ms"] * 1e3
        assert line["speed/tokens_per_s"] == pytest.approx(rate)
        assert line["speed/tokens_per_s_per_device"] == pytest.approx(rate / ranks_of(layout))
        assert 0 <= line["speed/data_wait_pct"] <= 100
        assert f"step {line['step']}/6  loss {line['train/loss']:.4f}  gnorm" in log
    if layout != "one":
        go(tmp_path, "one", output_dir=str(tmp_path / "one"))
        assert losses(tmp_path / "out") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)


def test_b07_learning_rates_are_those_of_the_schedule_on_any_number_of_data_ranks(tmp_path):
    sections = {"train": {"train_steps": None, "epochs": 2}, "lr_schedule": {"warmup_steps": None, "warmup_ratio": 0.1}}
    found = {}
    for layout in ("one", "dp2", "dp4"):
        go(tmp_path, layout, output_dir=str(tmp_path / layout), **sections)
        found[layout] = [rate for (rate,) in by_step(tmp_path / layout, "train/lr").values()]
    config = load_config(tmp_path / "one.yaml")
    spec = resolve(config, 1).train
    rates = [learning_rate(s, optimizer=spec.optimizer, schedule=spec.schedule, total_steps=25) for s in range(1, 26)]
    assert found == dict.fromkeys(found, rates)
    assert rates.index(max(rates)) == 2
    assert rates[2] == 0.01
    assert rates[-1] == pytest.approx(0.001)


def test_b11_masked_labels_lower_supervised_tokens_only(tmp_path):
    masked = Disturbance(masked=tuple(range(0, SAMPLES, 2)))
    order = GlobalOrder(SAMPLES, 7)
    go(tmp_path, "dp2", output_dir=str(tmp_path / "out"), monitor={"log_steps": 1}, disturbance=masked)
    supervised = 0
    for line in metrics(tmp_path / "out"):
        step = int(line["step"])
        samples = order.samples(range((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH))
        supervised += int((samples % 2).sum()) * SEQ_LENGTH
        assert line["train/tokens"] == step * GLOBAL_BATCH * SEQ_LENGTH
        assert line["train/supervised_tokens"] == supervised
        assert line["speed/tokens_per_s"] == pytest.approx(GLOBAL_BATCH * SEQ_LENGTH / line["speed/step_ms"] * 1e3)
        assert line["speed/supervised_tokens_per_s"] < line["speed/tokens_per_s"]
    assert 0 < supervised < 6 * GLOBAL_BATCH * SEQ_LENGTH
