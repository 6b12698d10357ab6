"""A run that is asked to stop finishes its step, saves, and goes on later as if it had not stopped."""

from pathlib import Path

import pytest

from meshwright.checkpoint import store
from ranks import run_ranks
from trainer_runs import Disturbance, Outcome, by_step, ranks_of, train, write_config

TRAINED = ("train/loss", "train/grad_norm", "train/lr")


def go(folder: Path, layout: str, *overrides: str, disturbance: Disturbance | None = None, **sections) -> list[Outcome]:
    config = write_config(folder, layout, model={"hidden_dropout": 0.1}, train={"train_steps": 12}, **sections)
    return run_ranks(train, ranks_of(layout), config, overrides, disturbance)


@pytest.mark.parametrize(
    ("layout", "workers", "beside", "wish", "reason"),
    [
        ("one", 2, False, Disturbance(stop_file_at=4), "the file "),
        ("dp2_zero1", 0, True, Disturbance(stop_signal_at=(1, 4)), "SIGTERM"),
        ("dp2tp2", 0, False, Disturbance(stop_signal_at=(3, 4)), "SIGTERM"),
        ("pp2", 2, True, Disturbance(stop_file_at=4), "the file "),
    ],
)
def test_a_wish_that_one_rank_hears_stops_all_at_one_step(tmp_path, capsys, layout, workers, beside, wish, reason):
    options = (f"dataset.num_parallel_workers={workers}", f"checkpoint.async_save={beside}")
    go(tmp_path, layout, *options, f"output_dir={tmp_path / 'straight'}")
    capsys.readouterr()
    outcomes = go(tmp_path, layout, *options, disturbance=wish)
    assert all(outcome.stopped for outcome in outcomes)
    # Told in step 4, heard in step 5.
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "stopped by" in line]
    assert f"stopped by {reason}" in told
    assert told.endswith(" after step 5/12, and saved")
    found = store.find_latest(tmp_path / "out" / "checkpoints")
    assert (found.step, found.skipped) == (5, [])
    assert store.verify(found.path) == []
    assert not (tmp_path / "out" / "STOP").exists()
    assert not any(outcome.stopped for outcome in go(tmp_path, layout, *options))
    steps = by_step(tmp_path / "out", *TRAINED)
    assert list(steps) == list(range(1, 13))
    assert steps == by_step(tmp_path / "straight", *TRAINED)


def test_a_wish_in_the_last_step_changes_nothing(tmp_path):
    (outcome,) = go(tmp_path, "one", disturbance=Disturbance(stop_file_at=12))
    assert not outcome.stopped
    assert store.find_latest(tmp_path / "out" / "checkpoints").step == 12
