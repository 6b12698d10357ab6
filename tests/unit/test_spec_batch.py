"""Batch arithmetic (B-05, B-08)."""

import pytest

from meshwright.spec.batch import auto_data_parallel, batch_change_notice, equation, solve_batch
from meshwright.spec.layout import Layout
from meshwright.spec.training import Batch
from meshwright.spec.violation import Violation


def refused(*numbers: int | None, data_parallel: int = 4, pipeline_stage: int = 1) -> Violation:
    size, num, whole = numbers
    solved = solve_batch(size, num, whole, data_parallel, pipeline_stage=pipeline_stage)
    assert isinstance(solved, list)
    assert len(solved) == 1
    return solved[0]


def test_b08_data_parallel_and_global_batch_from_devices() -> None:
    layout = Layout(model_parallel=2, pipeline_stage=2)
    data_parallel = auto_data_parallel(16, layout)
    assert data_parallel == 4
    batch = solve_batch(1, 8, None, data_parallel)
    assert batch == Batch(micro_batch_size=1, micro_batch_num=8, global_batch_size=32)
    assert equation(batch, data_parallel, 2048) == (
        "global_batch_size 32 = micro_batch_size 1 x data_parallel 4 x micro_batch_num 8;"
        " x seq_length 2048 = 65536 tokens per step"
    )


def test_b08_global_batch_30_offers_28_and_32() -> None:
    violation = refused(1, None, 30)
    assert violation.key_path == "train.global_batch_size"
    assert set(violation.legal) == {"28", "32"}
    assert "30 is not a multiple of micro_batch_size 1 x data_parallel 4" in violation.message


def test_b08_three_inconsistent_values_show_the_equation() -> None:
    violation = refused(1, 8, 30)
    assert violation.key_path == "train.global_batch_size"
    assert violation.legal == ("32", "28 with micro_batch_num 7")
    assert "micro_batch_size 1 x data_parallel 4 x micro_batch_num 8 = 32" in violation.message
    assert "global_batch_size = micro_batch_size x data_parallel x micro_batch_num" in violation.message


@pytest.mark.parametrize(
    "numbers", [(2, 4, None), (2, None, 32), (None, 4, 32), (2, 4, 32)], ids=["size+num", "size+gbs", "num+gbs", "all"]
)
def test_b08_any_two_give_the_third(numbers: tuple[int | None, int | None, int | None]) -> None:
    assert solve_batch(*numbers, 4) == Batch(micro_batch_size=2, micro_batch_num=4, global_batch_size=32)


def test_b08_doubling_the_micro_batch() -> None:
    fixed_global = solve_batch(2, None, 32, 4)
    assert isinstance(fixed_global, Batch)
    assert fixed_global.micro_batch_num == 4
    fixed_count = solve_batch(2, 8, None, 4)
    assert isinstance(fixed_count, Batch)
    assert fixed_count.global_batch_size == 64
    notice = batch_change_notice(32, 64, 3e-4, 3e-4)
    assert notice is not None
    assert "from 32 to 64 (x2)" in notice
    assert "linear scaling would be 0.0006" in notice


def test_no_notice_when_batch_stays_or_rate_moved() -> None:
    assert batch_change_notice(32, 32, 3e-4, 3e-4) is None
    assert batch_change_notice(32, 64, 3e-4, 6e-4) is None


def test_b05a_batch_of_8_in_3_micro_batches() -> None:
    violation = refused(None, 3, 8, data_parallel=1)
    assert violation.key_path == "parallel_config.micro_batch_num"
    assert violation.legal[:2] == ("2", "4")
    assert "global_batch_size 9 or 6" in violation.message


def test_b05a_offers_no_count_below_the_stages() -> None:
    assert refused(None, 3, 8, data_parallel=1, pipeline_stage=4).legal == ("4", "8")


def test_one_number_is_not_enough() -> None:
    violation = refused(1, None, None)
    assert "parallel_config.micro_batch_num, train.global_batch_size" in violation.message


def test_every_number_below_one_is_named() -> None:
    solved = solve_batch(0, -1, None, 4)
    assert isinstance(solved, list)
    assert [v.key_path for v in solved] == ["train.micro_batch_size", "parallel_config.micro_batch_num"]


def test_auto_data_parallel_refuses_devices_left_over() -> None:
    violation = auto_data_parallel(10, Layout(model_parallel=2, pipeline_stage=2))
    assert isinstance(violation, Violation)
    assert "start on 8 or 12 devices" in violation.message
