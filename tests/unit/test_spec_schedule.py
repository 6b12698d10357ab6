"""Steps, warm-up and learning rate (B-07)."""

import pytest

from meshwright.spec.batch import solve_batch
from meshwright.spec.schedule import (
    describe_duration,
    learning_rate,
    planned_steps,
    warmup_notice,
    warmup_steps,
)
from meshwright.spec.training import Batch, Duration, OptimizerSpec, ScheduleSpec

OPTIMIZER = OptimizerSpec(learning_rate=1e-3)


def rates(schedule: ScheduleSpec, total: int) -> list[float]:
    return [
        learning_rate(step, optimizer=OPTIMIZER, schedule=schedule, total_steps=total) for step in range(1, total + 1)
    ]


@pytest.mark.parametrize("schedule_type", ["cosine", "linear", "wsd"])
def test_b07_steps_warmup_and_schedule(schedule_type: str) -> None:
    batch = solve_batch(2, 5, None, 4)
    assert isinstance(batch, Batch)
    assert batch.global_batch_size == 40
    assert planned_steps(Duration(epochs=1), 40 * 64, 40, 1000) == 25
    total = planned_steps(Duration(epochs=2), 40 * 64, 40, 1000)
    assert total == 50
    schedule = ScheduleSpec(type=schedule_type, warmup_ratio=0.1, min_lr_ratio=0.1)  # type: ignore[arg-type]
    assert warmup_steps(schedule, total) == 5
    curve = rates(schedule, total)
    assert curve[4] == max(curve) == 1e-3
    assert curve[3] < 1e-3
    assert curve[49] == pytest.approx(1e-4, rel=1e-12)
    assert curve[48] > curve[49]


def test_b07_same_rates_for_every_data_parallel() -> None:
    curves = []
    for data_parallel in (1, 2, 4):
        batch = solve_batch(2, None, 40, data_parallel)
        assert isinstance(batch, Batch)
        total = planned_steps(Duration(epochs=2), batch.global_batch_size * 64, batch.global_batch_size, 1000)
        curves.append(rates(ScheduleSpec(warmup_ratio=0.1), total))
    assert curves[0] == curves[1] == curves[2]
    assert len(curves[0]) == 50


def test_b07_last_batch_rule() -> None:
    assert planned_steps(Duration(epochs=2), 1, 40, 1003) == 50
    assert planned_steps(Duration(epochs=2), 1, 40, 1020) == 51  # 25 full batches per epoch would give 50
    assert "the last 6 samples do not fill a batch" in describe_duration(Duration(epochs=2), 1, 40, 1003)


def test_tokens_round_up_and_fractions_of_epochs_are_exact() -> None:
    assert planned_steps(Duration(train_tokens=1001), 100, 10) == 11
    assert planned_steps(Duration(epochs=0.07), 1, 1, 100) == 7
    assert planned_steps(Duration(epochs=0.29), 1, 1, 100) == 29  # 0.29 * 100 is 28.999... in binary


def test_ratio_rounds_up_without_binary_noise() -> None:
    assert warmup_steps(ScheduleSpec(warmup_ratio=0.07), 100) == 7
    assert warmup_steps(ScheduleSpec(warmup_ratio=0.01), 150) == 2
    assert warmup_steps(ScheduleSpec(), 150) == 0


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        (Duration(), "exactly one"),
        (Duration(train_steps=1, epochs=1), "train_steps, epochs"),
        (Duration(epochs=1), "number of samples"),
    ],
)
def test_impossible_durations(duration: Duration, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned_steps(duration, 100, 10)


def test_run_without_a_step_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"5 samples / global_batch_size 10 = 0 steps"):
        planned_steps(Duration(epochs=1), 100, 10, 5)


def test_cosine_is_halfway_at_the_middle() -> None:
    curve = rates(ScheduleSpec(warmup_steps=10, min_lr_ratio=0.0), 110)
    assert curve[59] == pytest.approx(5e-4)
    assert curve[34] == pytest.approx(1e-3 * (1 + 2**-0.5) / 2)


def test_linear_and_wsd_shapes() -> None:
    linear = rates(ScheduleSpec(type="linear", warmup_steps=10, min_lr_ratio=0.0), 110)
    assert linear[59] == pytest.approx(5e-4)
    wsd = rates(ScheduleSpec(type="wsd", warmup_steps=10, decay_ratio=0.2, min_lr_ratio=0.0), 100)
    assert wsd[9:80] == [1e-3] * 71
    assert wsd[89] == pytest.approx(5e-4)
    assert wsd[99] == 0.0


def test_without_warmup_the_first_step_has_the_peak() -> None:
    assert rates(ScheduleSpec(type="constant"), 3) == [1e-3] * 3
    assert rates(ScheduleSpec(), 20)[0] == 1e-3


def test_rate_stays_at_its_end() -> None:
    late = learning_rate(500, optimizer=OPTIMIZER, schedule=ScheduleSpec(), total_steps=100)
    assert late == pytest.approx(1e-4)


def test_warmup_longer_than_the_run_is_noticed() -> None:
    assert warmup_notice(ScheduleSpec(warmup_steps=100), 100) is None
    notice = warmup_notice(ScheduleSpec(warmup_steps=100), 10)
    assert notice is not None
    assert "before its warm-up of 100 steps" in notice
    assert rates(ScheduleSpec(warmup_steps=100), 10)[-1] == pytest.approx(1e-4)


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(0, optimizer=OPTIMIZER, schedule=ScheduleSpec(), total_steps=100)


def test_both_warmups_are_refused() -> None:
    with pytest.raises(ValueError, match="at most one"):
        warmup_steps(ScheduleSpec(warmup_steps=1, warmup_ratio=0.1), 100)
