"""Divisibility rules and the legal values they offer (B-01 to B-05, contract 1)."""

from dataclasses import replace
from typing import Any

import pytest

from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.nearest import divisors, nearest_multiples
from meshwright.spec.presets import preset
from meshwright.spec.rules import legal_model_parallel, sequence_multiple, violations
from meshwright.spec.training import Batch, Duration, Recompute, ScheduleSpec, TrainSpec
from meshwright.spec.violation import Violation

TINY = preset("llama-2m")
SINGLE = Layout()


def train_spec(layout: Layout, *, seq_length: int = 64, micro_batch_num: int = 8, **others: Any) -> TrainSpec:
    batch = Batch(
        micro_batch_size=1,
        micro_batch_num=micro_batch_num,
        global_batch_size=micro_batch_num * layout.data_parallel,
    )
    return TrainSpec(seq_length=seq_length, batch=batch, **others)


def broken(
    model: ModelSpec = TINY, layout: Layout = SINGLE, world_size: int | None = None, **train: Any
) -> list[Violation]:
    return violations(model, layout, train_spec(layout, **train), world_size)


def one(*args: Any, **kwargs: Any) -> Violation:
    found = broken(*args, **kwargs)
    assert len(found) == 1, found
    return found[0]


def test_legal_request_breaks_nothing() -> None:
    layout = Layout(data_parallel=2, model_parallel=4, pipeline_stage=4, use_seq_parallel=True, zero_stage=2)
    assert broken(TINY, layout, 32) == []


def test_b01_kv_heads_against_tp() -> None:
    model = replace(TINY, num_heads=32, num_kv_heads=2)
    violation = one(model, Layout(model_parallel=4))
    assert violation.key_path == "parallel_config.model_parallel"
    assert "num_heads 32" in violation.message
    assert "num_kv_heads 2" in violation.message
    assert set(violation.legal) == {"1", "2"}
    assert violation.legal[0] == "2"
    assert broken(model, Layout(model_parallel=2)) == []


def test_b01_52_heads_against_tp8() -> None:
    model = replace(TINY, num_heads=52, num_kv_heads=52)
    violation = one(model, Layout(model_parallel=8))
    assert set(violation.legal) == {"1", "2", "4", "13", "26", "52"}
    assert "the other sizes of this model leave 1, 2, 4" in violation.message
    assert legal_model_parallel(model) == (1, 2, 4)


def test_b02_more_stages_than_layers() -> None:
    violation = one(replace(TINY, num_layers=6), Layout(pipeline_stage=8))
    assert violation.key_path == "parallel_config.pipeline_stage"
    assert violation.legal[0] == "6"


def test_b03_seq_4104_cp2_tp8() -> None:
    model = preset("llama3-8b")
    layout = Layout(context_parallel=2, model_parallel=8, use_seq_parallel=True)
    violation = one(model, layout, seq_length=4104)
    assert violation.key_path == "train.seq_length"
    assert "2052 tokens per context rank" in violation.message
    assert set(violation.legal) == {"4096", "4112"}
    assert broken(model, layout, seq_length=4112) == []
    assert broken(model, replace(layout, model_parallel=4), seq_length=4104) == []
    assert broken(model, replace(layout, use_seq_parallel=False), seq_length=4104) == []


def test_b03_balanced_context_needs_two_chunks_per_rank() -> None:
    assert sequence_multiple(Layout(context_parallel=4)) == 4
    assert sequence_multiple(Layout(context_parallel=4), balanced=True) == 8
    layout = Layout(context_parallel=2, model_parallel=8, use_seq_parallel=True)
    assert sequence_multiple(layout, balanced=True) == 16


def test_b04_padded_vocabulary_against_tp() -> None:
    model = replace(TINY, vocab_size=50257, num_heads=5, num_kv_heads=5, intermediate_size=640)
    violation = one(model, Layout(model_parallel=5))
    assert violation.key_path == "model.vocab_pad_multiple"
    assert "is 50304 rows" in violation.message
    assert "640" in violation.legal
    for multiple in violation.legal:
        assert broken(replace(model, vocab_pad_multiple=int(multiple)), Layout(model_parallel=5)) == []


def test_intermediate_size_against_tp() -> None:
    violation = one(replace(TINY, intermediate_size=510), Layout(model_parallel=4))
    assert "intermediate_size 510 (508 or 512 would do)" in violation.message
    assert violation.legal == ("2", "1")


def test_b05b_fewer_micro_batches_than_stages() -> None:
    for schedule in ("gpipe", "1f1b"):
        violation = one(TINY, Layout(pipeline_stage=4, pipeline_schedule=schedule), micro_batch_num=2)
        assert violation.key_path == "parallel_config.micro_batch_num"
        assert violation.legal == ("4 or more",)
        assert "pipeline_stage 2, 1" in violation.message


def test_b05c_interleaved_needs_a_multiple_of_the_stages() -> None:
    layout = Layout(pipeline_stage=4, pipeline_schedule="interleaved_1f1b")
    assert one(TINY, layout, micro_batch_num=6).legal == ("4", "8")
    assert broken(TINY, layout, micro_batch_num=8) == []


def test_world_size_is_the_product() -> None:
    violation = one(TINY, Layout(data_parallel=2, model_parallel=2), 16)
    assert violation.key_path == "parallel_config.data_parallel"
    assert "= 4, but 16 ranks run" in violation.message
    assert violation.legal == ("8", "auto")
    assert one(TINY, Layout(model_parallel=4), 6).legal == ()


def test_batch_that_does_not_multiply_out() -> None:
    train = replace(train_spec(Layout()), batch=Batch(micro_batch_size=2, micro_batch_num=2, global_batch_size=5))
    assert [v.legal[0] for v in violations(TINY, Layout(), train)] == ["4"]


def test_expert_parallel_divides_data_times_context() -> None:
    violation = one(TINY, Layout(data_parallel=2, context_parallel=2, expert_parallel=3))
    assert violation.key_path == "parallel_config.expert_parallel"
    assert set(violation.legal) == {"1", "2", "4"}


def test_zero_group_size() -> None:
    assert broken(TINY, Layout(data_parallel=4, zero_stage=3, zero_group_size=2)) == []
    assert one(TINY, Layout(data_parallel=4, zero_stage=3, zero_group_size=3)).legal == ("2", "4", "1")
    violation = one(TINY, Layout(data_parallel=4, zero_group_size=2))
    assert "zero_stage 0" in violation.message
    assert violation.legal == ("null",)


@pytest.mark.parametrize("order", [("data", "model"), ("data", "data", "context", "model")])
def test_mesh_order_is_a_permutation(order: tuple[Any, ...]) -> None:
    assert one(TINY, Layout(mesh_order=order)).key_path == "parallel_config.mesh_order"


def test_sequence_sharding_without_tensor_parallel_is_no_error() -> None:
    assert broken(TINY, Layout(use_seq_parallel=True), seq_length=63) == []


@pytest.mark.parametrize(
    ("model", "layout", "train", "key"),
    [
        ({"num_layers": 0}, {}, {}, "model.num_layers"),
        ({"num_kv_heads": 3}, {}, {}, "model.num_kv_heads"),
        ({"head_dim": 25}, {}, {}, "model.head_dim"),
        ({"hidden_dropout": 1.0}, {}, {}, "model.hidden_dropout"),
        ({"sliding_window": 0}, {}, {}, "model.sliding_window"),
        ({"sliding_window_layers": (4,)}, {}, {}, "model.sliding_window_layers"),
        ({}, {"model_parallel": 0}, {}, "parallel_config.model_parallel"),
        ({}, {"comm_fusion": 0}, {}, "parallel_config.comm_fusion"),
        ({}, {"zero_stage": 4}, {}, "parallel_config.zero_stage"),
        ({}, {}, {"loss_chunk_tokens": 0}, "train.loss_chunk_tokens"),
        ({}, {}, {"seq_length": 0}, "train.seq_length"),
        ({}, {}, {"recompute": Recompute(layers=(0, 4))}, "recompute_config.recompute"),
        ({}, {}, {"duration": Duration(train_steps=0)}, "train.train_steps"),
        ({}, {}, {"duration": Duration()}, "train.train_steps"),
        ({}, {}, {"duration": Duration(train_steps=5, epochs=1)}, "train.epochs"),
        ({}, {}, {"schedule": ScheduleSpec(warmup_steps=1, warmup_ratio=0.1)}, "lr_schedule.warmup_ratio"),
        ({}, {}, {"schedule": ScheduleSpec(warmup_steps=-1)}, "lr_schedule.warmup_steps"),
        ({}, {}, {"schedule": ScheduleSpec(min_lr_ratio=1.5)}, "lr_schedule.min_lr_ratio"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_wrong_by_themselves(
    model: dict[str, Any], layout: dict[str, Any], train: dict[str, Any], key: str
) -> None:
    found = one(replace(TINY, **model), Layout(**layout), **train)
    assert found.key_path == key
    assert str(found).startswith(f"{key}: ")


def test_all_broken_rules_come_at_once() -> None:
    layout = Layout(model_parallel=3, pipeline_stage=5, use_seq_parallel=True)
    keys = {violation.key_path for violation in broken(TINY, layout, 7, micro_batch_num=2)}
    assert keys == {
        "parallel_config.data_parallel",
        "parallel_config.model_parallel",
        "model.vocab_pad_multiple",
        "train.seq_length",
        "parallel_config.pipeline_stage",
        "parallel_config.micro_batch_num",
    }


def test_nearest_numbers() -> None:
    assert divisors(52) == (1, 2, 4, 13, 26, 52)
    assert nearest_multiples(4104, 16) == ("4096", "4112")
    assert nearest_multiples(3, 8) == ("8",)
    assert nearest_multiples(9, 4, at_least=12) == ("12",)
