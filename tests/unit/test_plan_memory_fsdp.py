"""Peak memory of the FSDP family against published runs, rules of thumb, and its own parts."""

from dataclasses import replace

import pytest

from meshwright.plan.engines import EngineName, engine
from meshwright.plan.job import Adapter, Job
from meshwright.plan.memory import predict_memory
from meshwright.plan.memory.block_backward import backward_events
from meshwright.plan.memory.decoder_block import Block, forward_ops, kept, remade
from meshwright.plan.network import Network
from meshwright.spec.catalogue import device_cluster
from meshwright.spec.cluster import GIB
from meshwright.spec.layout import Layout
from meshwright.spec.training import Batch, Precision, Recompute

LLAMA2_7B = Network(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_dim=128, intermediate_size=11008,
    vocab_size=32000,
)  # fmt: skip
LLAMA2_13B = Network(
    num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=40, head_dim=128, intermediate_size=13824,
    vocab_size=32000,
)  # fmt: skip
LLAMA2_70B = Network(
    num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, head_dim=128, intermediate_size=28672,
    vocab_size=32000,
)  # fmt: skip
LLAMA3_8B = Network(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, intermediate_size=14336,
    vocab_size=128256,
)  # fmt: skip
LLAMA3_70B = Network(
    num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, head_dim=128, intermediate_size=28672,
    vocab_size=128256,
)  # fmt: skip
SELECTIVE, FULL = Recompute(select=("elementwise",)), Recompute(layers="all")
O0, O2 = Precision(amp_level="O0"), Precision(amp_level="O2", dtype="bfloat16")


def job(
    network, *, device="a100-80g", seq=4096, mbs=1, micro_batches=1, name: EngineName = "meshwright", recompute=None,
    precision=O2, chunk=None, adapter=None, compile=False, offload=False, **layout,
) -> Job:  # fmt: skip
    split = Layout(**layout)
    return Job(
        network=network,
        layout=split,
        engine=engine(name),
        cluster=device_cluster(device, split.world_size),
        seq_length=seq,
        batch=Batch(
            micro_batch_size=mbs,
            micro_batch_num=micro_batches,
            global_batch_size=mbs * micro_batches * split.data_parallel,
        ),
        recompute=recompute or Recompute(),
        precision=precision,
        loss_chunk_tokens=chunk,
        adapter=adapter,
        compile=compile,
        offload_optimizer=offload,
    )


def worst(*args, **kwargs):
    return predict_memory(job(*args, **kwargs)).worst


def verdict(*args, **kwargs):
    wanted = job(*args, **kwargs)
    share = predict_memory(wanted).worst.device_total / wanted.cluster.device.memory_bytes
    return "fits" if share <= 0.92 else "tight" if share <= 1 else "out of memory"


def fsdp(ranks):
    return {"data_parallel": ranks, "zero_stage": 3}


class TestTorchtitan:
    """github.com/pytorch/torchtitan, docs/performance.md and benchmarks/llama3_h100_202412_torchtitan.md."""

    @pytest.mark.parametrize(
        ("mbs", "recompute", "expected"),
        [(2, SELECTIVE, "out of memory"), (1, SELECTIVE, "fits"), (2, FULL, "fits")],
    )
    def test_llama2_70b_on_64_a100(self, mbs, recompute, expected):
        assert verdict(LLAMA2_70B, mbs=mbs, recompute=recompute, name="torchtitan", **fsdp(64)) == expected

    @pytest.mark.parametrize(
        ("ranks", "compiled", "reserved"), [(8, False, 82.4), (8, True, 77.0), (128, False, 67.0), (128, True, 62.0)]
    )
    def test_llama3_8b_on_96_gb(self, ranks, compiled, reserved):
        run = {"device": "h100-96g", "seq": 8192, "mbs": 2, "recompute": SELECTIVE, "compile": compiled}
        assert worst(LLAMA3_8B, name="torchtitan", **run, **fsdp(ranks)).reserved / GIB == pytest.approx(
            reserved, rel=0.1
        )
        assert verdict(LLAMA3_8B, name="torchtitan", **run, **fsdp(ranks)) == "fits"

    @pytest.mark.parametrize("compiled", [False, True])
    def test_more_ranks_save_the_sharded_states(self, compiled):
        run = {"device": "h100-96g", "seq": 8192, "mbs": 2, "recompute": SELECTIVE, "compile": compiled}
        few, many = (worst(LLAMA3_8B, name="torchtitan", **run, **fsdp(ranks)).reserved for ranks in (8, 128))
        assert 14.0 * 0.9 <= (few - many) / GIB <= 15.4 * 1.1

    @pytest.mark.parametrize(("compiled", "expected"), [(False, "out of memory"), (True, "tight")])
    def test_llama3_8b_does_not_fit_80_gb(self, compiled, expected):
        run = {"device": "h100-80g", "seq": 8192, "mbs": 2, "recompute": SELECTIVE, "compile": compiled}
        assert verdict(LLAMA3_8B, name="torchtitan", **run, **fsdp(8)) == expected

    def test_llama3_70b_with_tensor_parallel(self):
        layout = {**fsdp(32), "model_parallel": 8, "use_seq_parallel": True}
        run = {"device": "h100-96g", "seq": 8192, "mbs": 16, "recompute": FULL, "compile": True, "name": "torchtitan"}
        assert worst(LLAMA3_70B, **run, **layout).reserved / GIB == pytest.approx(71.9, rel=0.1)

    def test_context_ranks_share_tokens_and_states(self):
        run = {"device": "h100-96g", "recompute": FULL, "compile": True, "name": "torchtitan"}
        whole = worst(LLAMA3_8B, seq=32768, **run, **fsdp(8))
        cut = worst(LLAMA3_8B, seq=262144, data_parallel=1, context_parallel=8, zero_stage=3, **run)
        # Measured: 83.9 and 84.5 GiB.
        assert cut.reserved == pytest.approx(whole.reserved, rel=0.01)
        assert cut.reserved / GIB == pytest.approx(84.5, rel=0.1)

    def test_pipeline_of_13b_matches_a_traced_step(self):
        """Allocator events of torch 2.13's own FSDP2 and 1F1B step: peaks and activations of four stages, GiB."""
        run = predict_memory(
            job(LLAMA2_13B, name="torchtitan", compile=True, micro_batches=8, pipeline_stage=4, **fsdp(2))
        )
        peaks = [stage.allocated / GIB for stage in run.stages]
        assert peaks == pytest.approx([67.50, 58.51, 51.16, 46.73], rel=0.01)
        activations = [stage.peak.parts["activations"] / GIB for stage in run.stages]
        assert activations[:3] == pytest.approx([29.61, 22.45, 15.14], rel=0.04)


class TestWholeFineTuning:
    """github.com/tatsu-lab/stanford_alpaca issue 56; github.com/Alpha-VLLM/LLaMA2-Accessory issue 26."""

    @pytest.mark.parametrize(
        ("network", "device", "ranks", "expected"),
        [
            (LLAMA2_7B, "a100-80g", 1, "out of memory"),
            (LLAMA2_7B, "a100-80g", 2, "fits"),
            (LLAMA2_13B, "a100-80g", 2, "out of memory"),
            (LLAMA2_13B, "a100-80g", 4, "fits"),
            (LLAMA2_13B, "a100-40g", 4, "out of memory"),
            (LLAMA2_13B, "a100-40g", 8, "fits"),
        ],
    )
    @pytest.mark.parametrize("name", ["meshwright", "torchtitan"])
    def test_sharding_decides(self, network, device, ranks, expected, name):
        assert verdict(network, device=device, seq=512, recompute=FULL, name=name, **fsdp(ranks)) == expected

    @pytest.mark.parametrize(("network", "device", "ranks"), [(LLAMA2_7B, "a100-80g", 1), (LLAMA2_13B, "a100-40g", 4)])
    def test_offload_makes_room(self, network, device, ranks):
        assert verdict(network, device=device, seq=512, recompute=FULL, offload=True, **fsdp(ranks)) == "fits"


class TestAdapters:
    """xtuner issue 88, axolotl issue 1717, FastChat issue 2322: 70B with low-rank adapters."""

    @staticmethod
    def run(bits, device, **layout):
        adapter = Adapter(rank=16, targets="all", base_bits=bits)
        return job(LLAMA2_70B, device=device, seq=2048, recompute=FULL, adapter=adapter, **layout)

    def moments(self, *args, **layout):
        stage = predict_memory(self.run(*args, **layout)).worst
        return {moment.name.split(" of ")[0]: moment.total / GIB for moment in stage.moments}, stage.peak.name

    def share(self, *args, **layout):
        run = self.run(*args, **layout)
        return predict_memory(run).worst.device_total / run.cluster.device.memory_bytes

    def test_replicated_4_bit_weights_need_48_gb(self):
        assert self.share(4, "a100-40g") > 1
        assert predict_memory(self.run(4, "a100-80g")).worst.device_total / 1e9 == pytest.approx(48, rel=0.1)

    def test_sharded_4_bit_weights_train_in_little_but_are_loaded_whole(self):
        moments, peak = self.moments(4, "a10g", **fsdp(4))
        assert peak == "loading"
        assert moments["loading"] > 24 > 2 * moments["backward"] - 10
        assert self.share(4, "a10g", **fsdp(4)) > 1

    @pytest.mark.parametrize("layout", [fsdp(8), {"model_parallel": 8, "use_seq_parallel": True}])
    def test_16_bit_weights_fit_8_devices_when_cut(self, layout):
        assert self.share(16, "a100-80g", **layout) < 0.92

    @pytest.mark.parametrize("stage", [0, 1, 2])
    def test_16_bit_weights_never_fit_replicated(self, stage):
        assert self.share(16, "a100-80g", data_parallel=8, zero_stage=stage) > 1.5

    def test_frozen_weights_have_neither_gradients_nor_states(self):
        parts = predict_memory(self.run(16, "a100-80g", **fsdp(8))).worst.peak.parts
        # rank x (inputs + outputs) of q, k, v, o and the three feed-forward matrices, in 16 bits.
        trained = 16 * 80 * (2 * (8192 + 8192) + 2 * (8192 + 1024) + 3 * (8192 + 28672))
        assert parts["gradients"] == 2 * trained
        assert parts["gradients"] + parts["optimizer"] < 0.04 * parts["weights"]


def test_length_grows_activations_alone():
    """About 100B on 128 A100: 4k tokens fit, longer ones do not (github.com/huggingface/trl issue 962)."""
    network = Network(
        num_layers=96, hidden_size=9216, num_heads=72, num_kv_heads=72, head_dim=128, intermediate_size=24576,
        vocab_size=32000,
    )  # fmt: skip
    short, long = (worst(network, seq=seq, recompute=FULL, **fsdp(128)).peak for seq in (4096, 32768))
    assert verdict(network, seq=4096, recompute=FULL, **fsdp(128)) == "fits"
    assert verdict(network, seq=32768, recompute=FULL, **fsdp(128)) == "out of memory"
    grown = {category: long.parts[category] - short.parts[category] for category in long.parts}
    assert max(grown, key=grown.get) == "activations"
    assert grown["activations"] > 0.9 * sum(grown.values())


class TestArithmetic:
    def test_18_bytes_for_each_parameter_at_zero_0(self):
        network = LLAMA2_7B
        elements = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 32000 * 4096 + 4096
        moments = predict_memory(job(network, micro_batches=2, data_parallel=8)).worst.moments
        loss = next(moment for moment in moments if moment.name == "loss")
        assert loss.parts["weights"] == 6 * elements
        assert loss.parts["gradients"] == 4 * elements
        assert loss.parts["optimizer"] == 8 * elements

    @pytest.mark.parametrize(("tensor", "chunk", "gib"), [(1, None, 4.64), (2, None, 2.32), (1, 1024, 0.58)])
    def test_logits_of_a_large_vocabulary(self, tensor, chunk, gib):
        network = Network(
            num_layers=28, hidden_size=3584, num_heads=28, num_kv_heads=4, head_dim=128, intermediate_size=18944,
            vocab_size=151936,
        )  # fmt: skip
        stage = worst(network, seq=8192, precision=O0, chunk=chunk, data_parallel=2, model_parallel=tensor)
        loss = next(moment for moment in stage.moments if moment.name == "loss")
        assert loss.parts["logits"] / GIB == pytest.approx(gib, abs=0.005)

    def test_1f1b_holds_as_many_micro_batches_as_stages(self):
        layout = {**fsdp(32), "pipeline_stage": 4, "model_parallel": 8, "use_seq_parallel": True}
        four, eight, many = (
            worst(LLAMA3_70B, device="h100-80g", seq=8192, micro_batches=count, **layout) for count in (4, 8, 32)
        )
        assert four.peak.parts["activations"] == pytest.approx(many.peak.parts["activations"], rel=0.002)
        assert many.allocated / eight.allocated < 1.001
        # With as many micro-batches as stages no gradient exists yet when the pipeline is fullest.
        assert many.allocated / four.allocated < 1.02

    def test_gpipe_grows_with_micro_batches(self):
        layout = {**fsdp(32), "pipeline_stage": 4, "model_parallel": 8, "use_seq_parallel": True}
        four, many = (
            worst(LLAMA3_70B, device="h100-80g", seq=8192, micro_batches=count, pipeline_schedule="gpipe", **layout)
            for count in (4, 32)
        )
        assert many.allocated > 5 * four.allocated

    def test_stages_that_cannot_be_the_worst_are_left_out(self):
        wanted = job(LLAMA2_13B, micro_batches=16, pipeline_stage=8, data_parallel=2, zero_stage=1)
        every, some = predict_memory(wanted), predict_memory(wanted, worst_only=True)
        assert len(some.stages) < len(every.stages) == 8
        assert some.worst.device_total == every.worst.device_total


class TestBlock:
    BLOCK = Block(
        tokens=4096, positions=4096, hidden=4096, query=4096, key_value=1024, inner=14336, heads=32, head_dim=128,
        norm="fused", compute=2, residual=2,
    )  # fmt: skip

    def test_kept_bytes_of_a_fused_block(self):
        """12h + 4k + 8f + 4a bytes a token, and rotary tables: x, two norm outputs, the residual between, q, attention
        output (2h each), k and v, four feed-forward tensors, and the log-sum-exp."""
        each = 12 * 4096 + 4 * 1024 + 8 * 14336 + 4 * 32
        tables = 4 * 4096 * 128 * 2
        assert kept(self.BLOCK, "autograd") == 4096 * each + tables

    def test_recomputation_keeps_less_and_makes_the_same_again(self):
        whole = kept(self.BLOCK, "autograd")
        for keep in ("input", ("elementwise",), ("elementwise", "attention"), "every second matmul"):
            assert kept(self.BLOCK, keep) < whole <= remade(self.BLOCK, keep)

    @pytest.mark.parametrize("norm", ["decomposed", "cast", "upcast", "fused"])
    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"compute": 4, "residual": 4},
            {"residual": 4},
            {"tensor": 2},
            {"tensor": 2, "sequence": 2},
            {"gated": False, "rope": False},
            {"qk_norm": True},
            {"expand_keys": True},
            {"expand_keys": True, "qk_norm": True, "rope": False},
            {"dropout": True, "materialised": True},
        ],
        ids=str,
    )
    def test_backward_drops_what_forward_kept(self, norm, change):
        block = replace(self.BLOCK, norm=norm, **change)
        temporaries, dropped, _ = (sum(change) for change in zip(*backward_events(block), strict=True))
        assert dropped == pytest.approx(kept(block, "autograd"))
        # What is left is the gradient of the block's input.
        assert temporaries == pytest.approx(block.R)

    def test_kept_views_hold_the_results_they_are_views_of(self):
        assert kept(self.BLOCK, ("matmul",)) == sum(op.size for op in forward_ops(self.BLOCK))


@pytest.mark.parametrize("name", ["meshwright", "torchtitan", "composer", "litgpt"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_more_shards_never_need_more(name, stage):
    peaks = [
        worst(LLAMA3_8B, name=name, recompute=FULL, data_parallel=ranks, zero_stage=stage).device_total
        for ranks in (2, 4, 8, 16)
    ]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_each_zero_stage_needs_no_more_than_the_one_before(level):
    run = {"micro_batches": 4, "precision": Precision(amp_level=level, dtype="bfloat16"), "recompute": FULL}
    peaks = [worst(LLAMA2_7B, data_parallel=16, zero_stage=stage, **run).allocated for stage in range(4)]
    assert peaks == sorted(peaks, reverse=True)
