"""Bytes per parameter of every engine, held to the figures that their authors and users publish."""

from dataclasses import replace

import pytest

from meshwright.plan.engines import ENGINES, engine
from meshwright.plan.job import Adapter, Job
from meshwright.plan.memory.megatron_states import states_of
from meshwright.plan.memory.megatron_weights import Weights
from meshwright.plan.network import Network
from meshwright.spec.catalogue import device_cluster
from meshwright.spec.layout import Layout
from meshwright.spec.training import Batch, Precision

GPT2 = Network(
    num_layers=12,
    hidden_size=768,
    num_heads=12,
    num_kv_heads=12,
    head_dim=64,
    intermediate_size=3072,
    vocab_size=50257,
)
FLOAT16 = Precision(amp_level="O2", dtype="float16")


def job(name: str, layout: Layout, precision: Precision | None = None) -> Job:
    made = Job(
        network=GPT2,
        layout=layout,
        engine=engine(name),
        cluster=device_cluster("a100-80g", layout.world_size, 8),
        seq_length=2048,
        batch=Batch(micro_batch_size=1, micro_batch_num=8, global_batch_size=8 * layout.data_parallel),
    )
    return replace(made, precision=precision) if precision else made


def states_in_gb(made: Job, parameters: float) -> float:
    return states_of(made, Weights(dense=parameters)).total / 1e9


@pytest.mark.parametrize(("zero", "expected"), [(0, 112.0), (1, 38.5), (2, 26.25), (3, 14.0)])
def test_zero_stages_of_deepspeed(zero: int, expected: float) -> None:
    """2 + 2 + 12 bytes per parameter (arXiv:1910.02054) of a 7 B model on 8 data ranks."""
    made = job("deepspeed", Layout(data_parallel=8, zero_stage=zero))
    assert states_in_gb(made, 7e9) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Layout(data_parallel=8, zero_stage=1), 71.5),
        (Layout(data_parallel=4, model_parallel=2, zero_stage=1), 45.5),
        (Layout(data_parallel=2, model_parallel=2, pipeline_stage=2, zero_stage=1), 32.5),
        (Layout(data_parallel=1, model_parallel=4, pipeline_stage=2, zero_stage=1), 26.0),
        (Layout(data_parallel=2, pipeline_stage=4, zero_stage=1), 32.5),
        (Layout(data_parallel=4, model_parallel=2, zero_stage=0), 104.0),
    ],
)
@pytest.mark.parametrize("name", ["megatron", "mindformers"])
def test_13_billion_parameters_on_8_devices(name: str, layout: Layout, expected: float) -> None:
    """A users' table of 13 B on 8 devices of 80 GB: N / (TP x PP) x (4 + 12 / DP) bytes with 16-bit gradients."""
    made = job(name, layout, FLOAT16)
    assert states_in_gb(made, 13e9 / (layout.model_parallel * layout.pipeline_stage)) == pytest.approx(expected)


@pytest.mark.parametrize(("data", "expected"), [(1, 18), (4, 9), (8, 7.5)])
def test_distributed_optimizer_of_megatron(data: int, expected: float) -> None:
    """6 + 12 / d bytes per parameter in bfloat16 (Megatron-LM docs, distributed optimizer)."""
    made = job("megatron", Layout(data_parallel=data, zero_stage=1))
    assert states_in_gb(made, 1e9) == pytest.approx(expected)


def test_distributed_optimizer_counts_context_ranks() -> None:
    made = job("megatron", Layout(data_parallel=2, context_parallel=4, zero_stage=1))
    assert states_in_gb(made, 1e9) == pytest.approx(7.5)


def test_experts_are_sharded_over_the_ranks_that_hold_them() -> None:
    """Four data ranks and four expert ranks leave one copy of each expert: 18 bytes per parameter (SimuMax's
    DeepSeek-V3 of four layers)."""
    made = job("megatron", Layout(data_parallel=4, expert_parallel=4, zero_stage=1))
    assert states_of(made, Weights(dense=0, expert=1e9)).total == pytest.approx(18e9)
    assert states_of(made, Weights(dense=1e9)).total == pytest.approx(9e9)


@pytest.mark.parametrize(("data", "expected"), [(1, 18), (2, 20), (64, 20)])
def test_nanotron_keeps_16_bit_buckets_beside_its_fp32_gradients(data: int, expected: float) -> None:
    """The playbook's runs hold 20 bytes per parameter between steps at ZeRO-0, and 18 on one data rank."""
    assert states_in_gb(job("nanotron", Layout(data_parallel=data)), 1e9) == pytest.approx(expected)


def test_float16_gradients_are_copied_for_the_step() -> None:
    states = states_of(job("megatron", Layout(data_parallel=4, zero_stage=1), FLOAT16), Weights(dense=1e9))
    assert states.gradients == pytest.approx(2e9)
    assert states.copies == pytest.approx(1e9)


def test_adapters_train_alone() -> None:
    """70 B in 4 bits are 35 GB on every rank, 140 GB in 16; only the adapters have gradients and an optimizer."""
    made = job("megatron", Layout(data_parallel=8))
    four, sixteen = (replace(made, adapter=Adapter(rank=16, base_bits=bits)) for bits in (4, 16))
    assert states_of(four, Weights(dense=70e9)).total == pytest.approx(35e9)
    assert states_of(sixteen, Weights(dense=70e9), 1e8).weights == pytest.approx(140.2e9)
    assert states_of(sixteen, Weights(dense=70e9), 1e8).optimizer == pytest.approx(1.2e9)


@pytest.mark.parametrize(("tensor", "rows"), [(1, 50304), (2, 50432), (8, 51200)])
def test_megatron_pads_the_vocabulary_by_the_tensor_degree(tensor: int, rows: int) -> None:
    """Megatron-LM ``_vocab_size_with_padding``: to a multiple of 128 x tensor degree."""
    assert job("megatron", Layout(model_parallel=tensor)).padded_vocabulary == rows


def test_meshwright_never_pads_by_the_layout() -> None:
    one, eight = (job("meshwright", Layout(model_parallel=tensor)).padded_vocabulary for tensor in (1, 8))
    assert one == eight


def test_every_engine_can_be_named() -> None:
    assert all(engine(profile.name) is profile for profile in ENGINES)
    with pytest.raises(ValueError, match="did you mean megatron"):
        engine("megatrn")
