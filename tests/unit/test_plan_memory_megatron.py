"""The memory model of the Megatron family, term by term, against the literature and arithmetic by hand."""

from dataclasses import replace

import pytest

from meshwright.plan.engines import EngineName, engine
from meshwright.plan.job import Job
from meshwright.plan.memory import predict_memory
from meshwright.plan.memory.cut import stage_layers
from meshwright.plan.memory.megatron_block import Style, layer_bytes, layer_saves
from meshwright.plan.memory.megatron_stage import in_flight, stages_of
from meshwright.plan.memory.report import StageMemory
from meshwright.plan.network import Experts, LatentAttention, Network
from meshwright.spec.catalogue import device_cluster
from meshwright.spec.cluster import GIB
from meshwright.spec.layout import Layout
from meshwright.spec.training import Batch, Recompute

GPT3 = Network(
    num_layers=96,
    hidden_size=12288,
    num_heads=96,
    num_kv_heads=96,
    head_dim=128,
    intermediate_size=4 * 12288,
    vocab_size=51200,
    gated=False,
    norm="layernorm",
    dropout=0.1,
)
LLAMA = Network(
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    intermediate_size=11008,
    vocab_size=32000,
)
SEQUENCE = 2048
STATISTICS = 2 * 8
"""fp32 mean and deviation of a token in two norms, which the literature leaves out."""


def style(*, tensor: int = 1, sequence: int = 1, scores: int = SEQUENCE, again: tuple[str, ...] = ()) -> Style:
    return Style(
        engine="megatron",
        tensor=tensor,
        sequence=sequence,
        routed=1.0,
        expert_tensor=1,
        scores=scores,
        context=False,
        again=again,
    )


def job(
    layout: Layout, *, name: EngineName = "megatron", network: Network = LLAMA, batches: int = 8, size: int = 1
) -> Job:
    return Job(
        network=network,
        layout=layout,
        engine=engine(name),
        cluster=device_cluster("h100-80g", layout.world_size, 8),
        seq_length=4096,
        batch=Batch(
            micro_batch_size=size,
            micro_batch_num=batches,
            global_batch_size=size * batches * layout.data_parallel,
        ),
    )


def worst(made: Job) -> StageMemory:
    return predict_memory(made).worst


def test_a_gpt_layer_saves_34_sbh_and_5_as2b() -> None:
    """arXiv:2205.05198, equation 1."""
    saved = layer_bytes(GPT3, style(), sparse=False)
    assert saved - STATISTICS == 34 * GPT3.hidden_size + 5 * GPT3.num_heads * SEQUENCE


def test_tensor_parallelism_leaves_10_sbh_whole() -> None:
    """arXiv:2205.05198, equation 2: 10 + 24 / t + 5 as / ht."""
    saved = layer_bytes(GPT3, style(tensor=8), sparse=False)
    assert saved - STATISTICS == 10 * GPT3.hidden_size + (24 * GPT3.hidden_size + 5 * GPT3.num_heads * SEQUENCE) / 8


def test_sequence_parallelism_splits_all() -> None:
    """arXiv:2205.05198, equation 4."""
    saved = layer_bytes(GPT3, style(tensor=8, sequence=8), sparse=False)
    assert saved - STATISTICS / 8 == (34 * GPT3.hidden_size + 5 * GPT3.num_heads * SEQUENCE) / 8


def test_recomputing_attention_frees_its_scores() -> None:
    """arXiv:2205.05198, equation 6: 34 sbh remain."""
    saved = layer_bytes(GPT3, style(again=("core_attn",)), sparse=False)
    assert saved - STATISTICS == 34 * GPT3.hidden_size


def test_every_module_that_can_be_recomputed_frees_its_tensors() -> None:
    network = replace(
        LLAMA,
        experts=Experts(num_experts=8, experts_per_token=2, intermediate_size=1024),
        latent=LatentAttention(
            query_rank=512, key_value_rank=128, nope_head_dim=64, rope_head_dim=32, value_head_dim=64
        ),
    )
    for module, sparse in (("moe_act", True), ("mla_up_proj", True), ("layernorm", True), ("mlp", False)):
        freed = sum(saved.bytes for saved in layer_saves(network, style(), sparse=sparse) if saved.module == module)
        whole = layer_bytes(network, style(), sparse=sparse)
        assert freed > 0
        assert whole - layer_bytes(network, style(again=(module,)), sparse=sparse) == pytest.approx(freed)


def test_nanotron_fills_stages_by_cost_with_the_head() -> None:
    """1.34 B: the head costs as much as four layers, so that ten lie on the first of two stages (its own logs)."""
    small = replace(LLAMA, num_layers=16, hidden_size=2048, head_dim=64, intermediate_size=8192, vocab_size=131072)
    made = job(Layout(pipeline_stage=2), name="nanotron", network=small)
    assert stage_layers(made) == (10, 6)
    assert stage_layers(replace(made, engine=engine("megatron"))) == (8, 8)


def test_1f1b_holds_as_many_micro_batches_as_stages_follow() -> None:
    made = job(Layout(pipeline_stage=4))
    assert [in_flight(made, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [in_flight(replace(made, batch=Batch(micro_batch_size=1, micro_batch_num=2, global_batch_size=2)), 0)] == [2]


def test_interleaving_holds_more() -> None:
    """Megatron-LM schedules.py: the last of 4 ranks with 3 chunks runs 8 chunks before its first backward."""
    made = job(Layout(pipeline_stage=4, pipeline_schedule="interleaved_1f1b"))
    made = replace(made, virtual_stages=3)
    assert in_flight(made, 3) * 3 == 9
    assert in_flight(made, 0) * 3 == 15


def test_more_micro_batches_cost_memory_with_gpipe_only() -> None:
    few, many = (worst(job(Layout(pipeline_stage=4), batches=batches)).allocated for batches in (4, 32))
    assert many == pytest.approx(few, rel=0.02)
    few, many = (
        worst(job(Layout(pipeline_stage=4, pipeline_schedule="gpipe"), batches=batches)).allocated
        for batches in (4, 32)
    )
    assert many > 2 * few


def test_logits_in_fp32() -> None:
    """8192 tokens x 151936 rows in fp32 are 4.64 GiB, half of it at tensor degree 2."""
    network = replace(LLAMA, vocab_size=151936)
    for tensor, expected in ((1, 4.64), (2, 2.32)):
        made = job(Layout(model_parallel=tensor), name="mindformers", network=network, size=2)
        loss = next(moment for moment in predict_memory(made).stages[0].moments if moment.name == "loss")
        # MindFormers keeps logits and softmax.
        assert loss.parts["logits"] / GIB == pytest.approx(2 * expected, rel=0.01)


def test_parts_of_a_moment_add_up() -> None:
    for stage in predict_memory(job(Layout(data_parallel=2, model_parallel=2, pipeline_stage=2))).stages:
        assert stage.peak.total == pytest.approx(sum(stage.peak.parts.values()))
        assert stage.reserved > stage.allocated


def test_whole_recomputation_keeps_inputs() -> None:
    made = job(Layout(pipeline_stage=2))
    again = replace(made, recompute=Recompute(layers="all"))
    kept = stages_of(again)[0].kept
    assert kept == 2 * 16 * 2 * LLAMA.hidden_size * made.tokens
    assert worst(again).allocated < worst(made).allocated


def test_zero_3_holds_less_weights_and_gathers() -> None:
    one, three = (worst(job(Layout(data_parallel=8, zero_stage=zero), name="deepspeed")).peak.parts for zero in (1, 3))
    assert three["weights"] == pytest.approx(one["weights"] / 8)
    assert three["communication"] > one["communication"]


def test_a_layout_that_does_not_fit_says_so() -> None:
    """13 B on one device is 234 GB of states alone."""
    network = replace(LLAMA, num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=40, intermediate_size=13824)
    made = job(Layout(), network=network)
    assert worst(made).device_total > 2 * made.cluster.device.memory_bytes


def test_what_waits_for_a_stream_never_exceeds_what_is_free() -> None:
    """nanotron at tensor degree 128 (469 B): two full-sequence tensors for each of 126 layers would be 130 GiB."""
    network = replace(
        LLAMA, num_layers=126, hidden_size=16384, num_heads=128, num_kv_heads=128, intermediate_size=53248
    )
    made = job(Layout(data_parallel=4, model_parallel=128, zero_stage=1), name="nanotron", network=network, size=4)
    stage = worst(made)
    assert stage.slack > 10 * GIB
    assert stage.device_total <= made.cluster.device.memory_bytes


def test_13_billion_parameters_on_8_devices_as_measured() -> None:
    """A users' table of 13 B, 8 x 80 GB, sequence 2048, GB per device; eight data ranks had no room.

    It does not state the number of micro-batches: what it leaves for activations with four stages (11.5 GB, against
    15.5 GB with two stages and half the layers of each tensor rank) is that of two in flight.
    """
    network = replace(LLAMA, num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=40, intermediate_size=13824)

    def needed(**degrees: int) -> float:
        made = job(Layout(**degrees), name="mindformers", network=network, batches=2)
        return worst(replace(made, seq_length=2048)).device_total / 1e9

    measured = (
        (62, needed(data_parallel=4, model_parallel=2, zero_stage=1)),
        (48, needed(data_parallel=2, model_parallel=2, pipeline_stage=2, zero_stage=1)),
        (44, needed(data_parallel=2, pipeline_stage=4, zero_stage=1)),
        (41, needed(data_parallel=1, model_parallel=4, pipeline_stage=2, zero_stage=1)),
    )
    for published, predicted in measured:
        assert predicted == pytest.approx(published, rel=0.15)
    order = [predicted for _, predicted in measured]
    assert order == sorted(order, reverse=True)
    assert needed(data_parallel=8, zero_stage=1) > 80
    assert needed(data_parallel=4, model_parallel=2) > 100


def test_sequence_or_tensor_parallelism_of_a_7b_keeps_its_order() -> None:
    """DeepSpeed#5305, 8 x A100, GB: tensor 4 recomputed 32.5, Ulysses 4 recomputed 43.8, tensor 45, Ulysses 62.3."""
    found = {}
    for label, layout, again in (
        ("tp4 recomputed", Layout(data_parallel=2, model_parallel=4, zero_stage=2), True),
        ("sp4 recomputed", Layout(data_parallel=2, context_parallel=4, zero_stage=2), True),
        ("tp4", Layout(data_parallel=2, model_parallel=4, zero_stage=2), False),
        ("sp4", Layout(data_parallel=2, context_parallel=4, zero_stage=2), False),
    ):
        made = replace(job(layout, name="megatron-deepspeed"), seq_length=8192)
        made = replace(made, recompute=Recompute(layers="all" if again else "none"))
        made = replace(made, cluster=device_cluster("a100-80g", 8, 8))
        found[label] = worst(made).device_total / 1e9
    assert sorted(found, key=found.__getitem__) == ["tp4 recomputed", "sp4 recomputed", "tp4", "sp4"]
    assert max(found.values()) < 80
