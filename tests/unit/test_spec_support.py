"""The support matrix and refusals by name."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from meshwright.spec.layout import Layout
from meshwright.spec.presets import preset
from meshwright.spec.support import MATRIX, Axis, support_markdown, unsupported
from meshwright.spec.training import Batch, Precision, TrainSpec

TINY = preset("llama-2m")
BATCH = Batch(micro_batch_size=1, micro_batch_num=8, global_batch_size=8)


def refusals(device: str = "cpu", precision: Precision | None = None, **layout: Any) -> list[str]:
    train = TrainSpec(seq_length=64, batch=BATCH, precision=precision or Precision())
    return [str(violation) for violation in unsupported(TINY, Layout(**layout), train, device=device)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_three_dimensions_at_every_level(schedule: str, zero_stage: int, level: Any) -> None:
    layout = {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2, "use_seq_parallel": True}
    assert (
        refusals(precision=Precision(amp_level=level), zero_stage=zero_stage, pipeline_schedule=schedule, **layout)
        == []
    )


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "zero_bubble"])
def test_b05c_schedules_refused_by_name(schedule: str) -> None:
    (refusal,) = refusals(pipeline_stage=2, pipeline_schedule=schedule)
    assert refusal.startswith(f"parallel_config.pipeline_schedule: pipeline_schedule {schedule} is not supported")
    assert refusal.endswith("Legal: 1f1b, gpipe.")


def test_b03_context_parallel_refused_by_name() -> None:
    (refusal,) = refusals(context_parallel=2)
    assert refusal.startswith("parallel_config.context_parallel: context_parallel 2 is not supported")
    assert refusal.endswith("Legal: 1.")


def test_expert_parallel_refused_by_name() -> None:
    (refusal,) = refusals(data_parallel=4, expert_parallel=4)
    assert "expert_parallel 4 is not supported" in refusal


def test_o3_with_fp16_refused_with_the_reason() -> None:
    (refusal,) = refusals(precision=Precision(amp_level="O3", dtype="float16"))
    assert "underflow" in refusal
    assert "O2 with float16, O3 with bfloat16" in refusal
    assert refusals(precision=Precision(amp_level="O3", dtype="bfloat16")) == []
    assert refusals(precision=Precision(amp_level="O2", dtype="float16")) == []


def test_sixteen_bit_level_in_fp32_refused() -> None:
    (refusal,) = refusals(precision=Precision(amp_level="O2", dtype="float32"))
    assert refusal.startswith("amp_config.dtype")
    assert refusals(precision=Precision(amp_level="O0", dtype="float32")) == []


def test_attention_dropout_on_shared_residual_refused() -> None:
    model = replace(TINY, attention_dropout=0.1)
    train = TrainSpec(seq_length=64, batch=BATCH)
    (refusal,) = unsupported(model, Layout(model_parallel=2), train)
    assert refusal.key_path == "parallel_config.use_seq_parallel"
    assert unsupported(model, Layout(model_parallel=2, use_seq_parallel=True), train) == []
    assert unsupported(model, Layout(data_parallel=2), train) == []


def test_unknown_device_refused() -> None:
    assert refusals(device="npu") == []
    (refusal,) = refusals(device="tpu")
    assert "device tpu" in refusal


def test_all_refusals_come_at_once() -> None:
    found = refusals(
        precision=Precision(amp_level="O3", dtype="float16"),
        context_parallel=2,
        expert_parallel=2,
        pipeline_schedule="zero_bubble",
    )
    assert len(found) == 4


def test_markdown_has_every_row_and_axis() -> None:
    page = support_markdown()
    assert page.count("\n## ") + 1 == len(get_args(Axis))
    for row in MATRIX:
        assert f"| {row.combination} | {'yes' if row.supported else 'no'} | {row.note}." in page
    assert "| context_parallel > 1 | no |" in page
    assert "Nearest: 1f1b, gpipe." in page


def test_every_refused_row_says_what_to_do_instead() -> None:
    refused = [row for row in MATRIX if row.refusal]
    assert len(refused) >= 6
    for row in refused:
        assert row.note
        assert row.refusal is not None
        assert row.refusal.nearest
