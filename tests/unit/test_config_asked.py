"""What a config asks for on other devices than its layout was written for: the batch stays, mistakes stay mistakes."""

from pathlib import Path

import pytest

from meshwright.config.errors import ConfigErrors
from meshwright.config.load import load_config
from meshwright.config.run import Asked, asked

CONFIG = """
model: {preset: llama2-7b}
parallel_config: {data_parallel: %s, model_parallel: 2, pipeline_stage: 2, micro_batch_num: %s}
train: {seq_length: 2048, micro_batch_size: 1, global_batch_size: %s}
"""


def read(tmp_path: Path, devices: int, data: object, num: object = "null", whole: object = "null", *more: str) -> Asked:
    (tmp_path / "a.yaml").write_text(CONFIG % (data, num, whole))
    return asked(load_config(tmp_path / "a.yaml", more), devices)


def test_a_layout_for_other_devices_still_gives_its_global_batch(tmp_path: Path) -> None:
    found = read(tmp_path, 64, 2, 8)
    assert found.train.batch.global_batch_size == 16
    assert found.layout.data_parallel == 2
    assert "but 64 ranks run" in found.problems[0].message


def test_auto_takes_the_devices_that_are_left(tmp_path: Path) -> None:
    found = read(tmp_path, 16, "auto", 8)
    assert (found.layout.data_parallel, found.train.batch.global_batch_size, found.problems) == (4, 32, ())


def test_a_global_batch_of_its_own_needs_no_legal_layout(tmp_path: Path) -> None:
    found = read(tmp_path, 16, "auto", "null", 30)
    assert found.train.batch.global_batch_size == 30
    assert found.problems[0].legal == ("28", "32")
    assert read(tmp_path, 6, "auto", "null", 30).train.batch.global_batch_size == 30


def test_a_global_batch_that_depends_on_an_impossible_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="6 devices are not a multiple of model_parallel 2 x pipeline_stage 2"):
        read(tmp_path, 6, "auto", 8)


def test_three_numbers_must_agree(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="30 contradicts micro_batch_size 1 x data_parallel 4 x micro_batch_num 8"):
        read(tmp_path, 16, "auto", 8, 30)


def test_wrong_values_are_refused_at_their_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"command line: model.num_kv_heads: 3 must divide num_heads 32"):
        read(tmp_path, 16, "auto", 8, "null", "model.num_kv_heads=3")
