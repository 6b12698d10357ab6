"""The time model: its terms, its limits, and published figures that a wrong term would miss."""

from dataclasses import replace

import pytest

from meshwright.plan.engines import EngineName, engine
from meshwright.plan.job import Adapter, Job
from meshwright.plan.network import Experts, LatentAttention, Network
from meshwright.plan.time import predict_time
from meshwright.plan.time.compute import matmul
from meshwright.plan.time.constants import NAMES, constants, table
from meshwright.plan.time.machine import machine_of
from meshwright.plan.time.report import TERMS
from meshwright.plan.time.step import timeline
from meshwright.spec.catalogue import HARDWARE, device_cluster
from meshwright.spec.cluster import Calibration, MatmulRate
from meshwright.spec.layout import Layout
from meshwright.spec.training import Batch, Precision, Recompute

LLAMA_7B = Network(
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    intermediate_size=11008,
    vocab_size=32000,
)
ENGINES: tuple[EngineName, ...] = (
    "meshwright", "torchtitan", "composer", "litgpt", "megatron", "megatron-deepspeed", "nanotron", "deepspeed",
    "mindformers", "mindspeed",
)  # fmt: skip


def job(
    name: EngineName = "megatron",
    *,
    device: str = "h100-80g",
    network: Network = LLAMA_7B,
    micro_batch_size: int = 1,
    micro_batch_num: int = 8,
    seq_length: int = 4096,
    more: dict | None = None,
    **degrees,
) -> Job:
    layout = Layout(**degrees)
    data = layout.data_parallel
    return Job(
        network=network,
        layout=layout,
        engine=engine(name),
        cluster=device_cluster(device, layout.world_size),
        seq_length=seq_length,
        batch=Batch(
            micro_batch_size=micro_batch_size,
            micro_batch_num=micro_batch_num,
            global_batch_size=micro_batch_size * micro_batch_num * data,
        ),
        **(more or {}),
    )


LAYOUTS = (
    {"data_parallel": 8, "zero_stage": 3},
    {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2, "zero_stage": 1, "use_seq_parallel": True},
    {"data_parallel": 16, "model_parallel": 8, "pipeline_stage": 4, "use_seq_parallel": True},
    {"data_parallel": 2, "context_parallel": 4, "zero_stage": 2},
)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("degrees", LAYOUTS)
def test_terms_add_up_and_none_is_negative(name: EngineName, degrees: dict) -> None:
    report = predict_time(job(name, **degrees))
    assert set(report.terms) <= set(TERMS)
    assert sum(report.terms.values()) == pytest.approx(report.seconds)
    assert min(report.terms.values()) >= -1e-9 * report.seconds
    assert 0 < report.mfu < 1
    assert all(0 <= row.exposed <= row.seconds * 1.0001 for row in report.traffic)


def test_every_device_of_the_catalogue_gives_a_sane_figure() -> None:
    for entry in HARDWARE:
        report = predict_time(job("meshwright", device=entry.name, data_parallel=8, zero_stage=3))
        assert 0.02 < report.mfu < 0.9, entry.name


def test_constants_are_few_and_physical() -> None:
    for name, families in table().items():
        for family, values in families.items():
            assert set(values) <= set(NAMES)
            assert len(values) <= 8 or name == "default"
            assert 0 < values.get("matmul", 0.5) <= 0.95, (name, family)
            assert 0 < values.get("bandwidth", 0.5) <= 0.95, (name, family)
    assert constants("deepspeed", "cdna3").matmul == table()["default"]["default"]["matmul"]


def test_flops_convention() -> None:
    """6 per matrix parameter and token, the input embedding left out, and causal attention: 6 L s h per token."""
    report = predict_time(job(data_parallel=1, micro_batch_num=1))
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    assert report.model_flops == pytest.approx(4096 * (6 * matrices + 6 * 32 * 4096 * 4096))
    assert report.mfu == pytest.approx(report.model_flops / report.seconds / 989e12, rel=0.01)


def test_isolated_documents_cost_whole_rows_of_scores_on_our_engine_alone() -> None:
    def compute(name: EngineName, isolated: bool, length: int) -> float:
        asked = job(name, seq_length=length, data_parallel=8, zero_stage=1, more={"isolate_documents": isolated})
        return predict_time(asked).terms["compute"]

    short, long = (compute("meshwright", True, n) / compute("meshwright", False, n) for n in (1024, 16384))
    assert 1.0 < short < 1.2 < long
    # At most the whole square by a kernel of half the rate, forward and backward.
    assert long < 4
    assert compute("torchtitan", True, 4096) == compute("torchtitan", False, 4096)


def test_recomputing_everything_adds_one_forward_pass() -> None:
    plain = predict_time(job(data_parallel=8, zero_stage=1))
    again = predict_time(job(data_parallel=8, zero_stage=1, more={"recompute": Recompute(layers="all")}))
    assert again.terms["recompute"] / again.terms["compute"] == pytest.approx(1 / 3, abs=0.08)
    assert again.model_flops == plain.model_flops
    part = predict_time(job(data_parallel=8, zero_stage=1, more={"recompute": Recompute(select=("elementwise",))}))
    assert 0 < part.terms["recompute"] < again.terms["recompute"] / 3


def test_one_flash_layer_beats_a_materialised_one_more_with_length() -> None:
    def gain(seq_length: int) -> float:
        flash = job(data_parallel=1, seq_length=seq_length)
        return predict_time(replace(flash, attention="materialised")).seconds / predict_time(flash).seconds

    assert 1 < gain(2048) < gain(16384)


def test_a_matrix_product_fills_the_device_only_when_it_is_large() -> None:
    machine = machine_of(device_cluster("a100-80g", 1), "composer", "bfloat16")

    def rate(m: int, n: int, k: int) -> float:
        return 2 * m * n * k / matmul(machine, m, n, k) / 312e12

    assert rate(128, 128, 4096) < rate(1024, 4096, 4096) < rate(8192, 8192, 8192) < 0.9
    assert rate(8192, 50257, 4096) < 0.5 * rate(8192, 50304, 4096)
    # A tall thin product reads its operands at memory bandwidth.
    assert matmul(machine, 8192, 16, 8192) > 2 * 8192 * 8192 / 2.039e12


def test_measured_rates_replace_fitted_ones() -> None:
    plain = job(data_parallel=1)
    slow = tuple(
        MatmulRate(m=m, k=k, n=n, number_format="bfloat16", flops=100e12)
        for m, k, n in ((4096, 4096, 12288), (4096, 4096, 22016), (4096, 11008, 4096))
    )
    measured = replace(plain, cluster=replace(plain.cluster, calibration=Calibration(matmul=slow)))
    ratio = predict_time(measured).terms["compute"] / predict_time(plain).terms["compute"]
    assert ratio == pytest.approx(989e12 * 0.65 / 100e12, rel=0.35)


def test_slow_links_make_tensor_parallel_across_nodes_slow() -> None:
    inside = predict_time(job(model_parallel=8, data_parallel=2, use_seq_parallel=True))
    across = predict_time(job(model_parallel=16, data_parallel=1, use_seq_parallel=True))
    assert across.terms["tensor"] > 2 * inside.terms["tensor"]


def test_small_models_wait_for_the_host() -> None:
    tiny = replace(LLAMA_7B, hidden_size=256, num_heads=4, num_kv_heads=4, head_dim=64, intermediate_size=768)
    report = predict_time(job(network=tiny, data_parallel=1, seq_length=256))
    assert report.terms["host"] > report.terms["compute"]
    assert predict_time(job(data_parallel=1)).terms["host"] == 0


def test_zero_3_gathers_in_both_passes_of_every_micro_batch() -> None:
    report = predict_time(job("meshwright", data_parallel=8, zero_stage=3, micro_batch_num=4))
    by_kind = {row.collective: row for row in report.traffic if row.axis == "data"}
    # 16-bit weights twice, gradients once in 32 bits: as many bytes either way, by 7 of 8 ranks. The head is kept.
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 32000 * 4096
    assert by_kind["reduce_scatter"].bytes == pytest.approx(4 * 4 * weights * 7 / 8, rel=0.01)
    assert by_kind["all_gather"].bytes == pytest.approx(4 * 2 * (2 * weights - 32000 * 4096) * 7 / 8, rel=0.01)


def test_experts_send_their_tokens_and_only_visited_ones_compute() -> None:
    experts = Experts(num_experts=64, experts_per_token=4, intermediate_size=2048)
    sparse = replace(LLAMA_7B, experts=experts)
    report = predict_time(job(network=sparse, data_parallel=8, expert_parallel=8))
    row = next(row for row in report.traffic if row.axis == "expert")
    # Dispatch and combine, forward and backward: 4 messages per layer and micro-batch, of 4 copies of 4096 tokens.
    assert row.messages == 4 * 32 * 8
    assert row.bytes == pytest.approx(row.messages * 4 * 4096 * 4096 * 2 * 7 / 8)
    more = replace(LLAMA_7B, experts=replace(experts, num_experts=128))
    both = (predict_time(job(network=net, data_parallel=8, expert_parallel=8)) for net in (sparse, more))
    assert next(both).model_flops == pytest.approx(next(both).model_flops, rel=0.01)


def test_other_networks_and_settings_are_predicted() -> None:
    latent = LatentAttention(
        query_rank=1536, key_value_rank=512, nope_head_dim=128, rope_head_dim=64, value_head_dim=128
    )
    plain = predict_time(job(data_parallel=8)).seconds
    assert predict_time(job(network=replace(LLAMA_7B, latent=latent), data_parallel=8)).seconds != plain
    assert predict_time(job(data_parallel=8, more={"float8": True})).seconds < plain
    assert predict_time(job(data_parallel=8, more={"adapter": Adapter(rank=16)})).seconds < plain
    assert predict_time(job(data_parallel=8, network=replace(LLAMA_7B, mtp_layers=1))).seconds > plain
    full = Precision(amp_level="O0")
    assert predict_time(job(data_parallel=8, more={"precision": full})).seconds > 2 * plain


def test_timeline_ends_where_the_schedule_does() -> None:
    piped = job("meshwright", pipeline_stage=4, micro_batch_num=16, zero_stage=0)
    report, replayed = predict_time(piped), timeline(piped)
    after = report.terms["optimizer"] + report.terms["data"]
    assert max(span.end for span in replayed) == pytest.approx(report.seconds - after)
    assert len(replayed) == 2 * 4 * 16


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "tensor", "pipeline", "sequences", "published"),
    [(96, 12288, 96, 8, 8, 64, 18.13), (105, 20480, 128, 8, 35, 280, 49.05), (128, 25600, 160, 8, 64, 512, 94.42)],
)
def test_megatron_at_175b_530b_1t(
    layers: int, hidden: int, heads: int, tensor: int, pipeline: int, sequences: int, published: float
) -> None:
    """arXiv:2205.05198, table 5: full recomputation on A100, sequence length 2048, one data rank."""
    network = Network(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=4 * hidden,
        vocab_size=51200,
        gated=False,
        norm="layernorm",
        bias=True,
        position="learned",
        tied=True,
    )
    run = job(
        "megatron",
        device="a100-80g",
        network=network,
        micro_batch_num=sequences,
        seq_length=2048,
        model_parallel=tensor,
        pipeline_stage=pipeline,
        more={"recompute": Recompute(layers="all"), "attention": "materialised"},
    )
    assert predict_time(run).seconds == pytest.approx(published, rel=0.2)


def test_an_offloaded_optimizer_takes_longer() -> None:
    plain = job("meshwright", data_parallel=8, zero_stage=3)
    on_host = predict_time(replace(plain, offload_optimizer=True)).terms["optimizer"]
    # 6.7 B parameters over eight ranks of one node, at 4e9 a second together.
    assert on_host == pytest.approx(6.7e9 / 4e9, rel=0.15)
    assert on_host > 10 * predict_time(plain).terms["optimizer"]
