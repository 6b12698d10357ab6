"""Advice follows from predicted numbers: other numbers, other advice."""

import re
from dataclasses import replace

import pytest
from plan_questions import answer, only, question

from meshwright.plan.advice import advise, remedies
from meshwright.plan.job import Adapter
from meshwright.plan.levers import host_bytes, levers, offloaded, smallest_that_fits
from meshwright.plan.misses import memory_miss
from meshwright.plan.search import predict, search
from meshwright.spec.parameters import total


def text(found) -> str:
    return "\n".join(advise(found))


def test_d06_one_device_is_refused_and_two_or_offloading_proposed() -> None:
    """stanford_alpaca#56: 6.7 B parameters need 94 to 107 GB before activations; two devices with sharding work."""
    one = answer("llama2-7b", 1, "a100-80g", batch=128, seq=512)
    assert one.best is None
    assert 94e9 < one.over[0].needed < 135e9
    told = text(one)
    two = smallest_that_fits(one.question)
    assert two.question.cluster.num_devices == 2
    assert two.best.job.layout.data_parallel == 2
    assert two.best.job.layout.zero_stage == 3
    assert "2 devices: dp2 zero3" in told
    assert re.search(r"offloaded to the host: .* fits, .* GB of host memory", told)


def test_d07_offloading_says_how_much_host_memory_it_takes() -> None:
    """LLaMA2-Accessory#26: 13 B on 4 x 40 GB works with offloading and about 240 GB of host memory only."""
    four = answer("llama2-13b", 4, "a100-40g", batch=128, seq=512)
    assert four.best is None
    assert host_bytes(four.question) == pytest.approx(240e9, rel=0.05)
    assert offloaded(four.question) is not None
    assert "234 GB of host memory" in text(four)


def test_d01_offers_the_two_that_fit() -> None:
    fix = "dp=64,zero=3,mbs=2,recompute=select"
    asked = question("llama2-70b", 64, "a100-80g", batch=128, seq=4096, framework="torchtitan", fix=fix)
    refused = only(search(asked))
    assert refused.fit == "over"
    offered = {lever.change: lever.candidate.fit for lever in levers(asked, refused)}
    assert offered["micro_batch_size 1"] != "over"
    assert offered["recompute everything"] == "fits"


def test_d10_more_zero_is_no_answer_to_longer_sequences() -> None:
    """trl#962: about 100 B on 128 A100 with ZeRO-3; activations bind: recompute, CP or TP with sequence sharding."""
    big = replace(
        question("llama2-70b", 128, "a100-80g", batch=128, seq=4096).model,
        num_layers=96,
        hidden_size=9216,
        num_heads=72,
        num_kv_heads=72,
        intermediate_size=24576,
        max_position_embeddings=65536,
    )
    assert 90e9 < total(big) < 110e9
    asked = question(big, 128, "a100-80g", batch=128, seq=16384, fix="dp=128,zero=3,mbs=1,recompute=none")
    refused = only(search(asked))
    short = predict(replace(asked, train=replace(asked.train, seq_length=4096)), replace(refused.job, seq_length=4096))
    grown = {
        part: size - short.memory.worst.peak.parts.get(part, 0.0)
        for part, size in refused.memory.worst.peak.parts.items()
    }
    assert max(grown, key=grown.get) == "activations"
    assert grown["activations"] > 0.8 * (refused.needed - short.needed)
    first, *changes = remedies(asked, refused)
    assert "grow with the sequence of 16384 tokens" in first
    assert "shard or recompute activations" in first
    assert not any("zero_stage" in change for change in changes)
    named = " ".join(changes)
    assert "recompute everything: fits" in named
    assert "context_parallel 2" in named
    assert "model_parallel 2 with use_seq_parallel" in named


def test_a_model_that_fits_one_device_stays_whole() -> None:
    found = answer("llama3.2-1b", 8, "h100", batch=64, seq=4096)
    assert found.best.job.layout.data_parallel == 8
    assert "data parallel alone fits" in text(found)
    assert "cutting the model as well would take" in text(found)


def test_a_model_too_large_for_data_parallel_alone_is_cut() -> None:
    found = answer("llama3-70b", 16, "h100", batch=64, seq=4096, fix="zero=1")
    assert re.search(
        r"data parallel alone does not fit \(dp16 zero1 needs [\d.]+ GiB at .+\): the model must be cut", text(found)
    )
    assert found.best is None or found.best.job.layout.model_parallel * found.best.job.layout.pipeline_stage > 1


def test_tensor_parallel_stays_inside_a_node_because_the_network_is_slow() -> None:
    found = answer("llama3-70b", 64, "h100", batch=64, seq=4096)
    told = re.search(
        r"take ([\d.]+) (m?s)/step over NVLink4, over 400 Gb/s network they would take ([\d.]+) (m?s)", text(found)
    )
    assert told, text(found)
    scale = {"s": 1.0, "ms": 1e-3}
    assert float(told[3]) * scale[told[4]] > 2 * float(told[1]) * scale[told[2]]
    assert re.search(
        r"between nodes, per device and step: data \([\d.]+ .B, .+ not hidden\) over 400 Gb/s", text(found)
    )
    everything_near = answer("llama3-70b", 64, "h100", batch=64, seq=4096, per_node=64)
    assert "keep tensor parallel inside a node" not in text(everything_near)


def test_slow_links_between_nodes_move_the_model_cut_to_the_pipeline() -> None:
    """With a slower network the fastest layout sends less over it."""

    def network(slower: float):
        asked = question("llama2-13b", 32, "a100-80g", batch=128, seq=4096)
        inter = replace(asked.cluster.inter, bandwidth=asked.cluster.inter.bandwidth / slower)
        return search(replace(asked, cluster=replace(asked.cluster, inter=inter))).best

    def sent(candidate) -> float:
        return sum(t.bytes for t in candidate.time.traffic if "network" in t.link or "Gb/s" in t.link)

    fast, slow = network(1), network(40)
    assert sent(slow) < sent(fast)
    assert slow.job.layout.model_parallel <= 8


def test_key_value_heads_end_tensor_parallel() -> None:
    found = answer("qwen2.5-7b", 8, "h100", batch=16, seq=4096)
    assert "tensor parallel ends at the 4 key/value heads of this model" in text(found)
    assert "key/value heads" not in text(answer("llama2-13b", 8, "h100", batch=16, seq=4096))


def test_long_sequences_are_split_or_recomputed_with_their_price() -> None:
    found = answer("llama3-8b", 8, "h100", batch=8, seq=32768, fix="tp=1")
    told = text(found)
    assert "at 32768 tokens the sequence is what fills" in told
    assert "context_parallel 2" in told
    assert "(not supported by meshwright yet)" in told
    assert "the sequence is what fills" not in text(answer("llama3-8b", 64, "h200", batch=64, seq=128))


def test_the_bubble_is_told_with_what_it_comes_from() -> None:
    found = answer("llama2-13b", 8, "h100", batch=8, seq=2048, fix="pp=4,mbs=1")
    assert re.search(r"\d+ micro-batches over 4 stages leave \d+% idle", text(found))


def lora(devices: int, hardware: str, bits: float, **others):
    """70 B with adapters on every linear layer, as torchtitan holds them."""
    adapter = Adapter(rank=16, base_bits=bits)
    return answer(
        "llama2-70b", devices, hardware, batch=16, seq=2048, framework="torchtitan", adapter=adapter, **others
    )


def test_d08_16_bit_adapters_of_70b_are_sharded_never_replicated() -> None:
    """140 GB of weights on 8 x 80 GB: sharded by ZeRO-3 or tensor parallel they fit, with ZeRO-2 alone never."""
    found = lora(8, "a100-80g", 16)
    names = {candidate.name for candidate in found.fitting}
    assert {"dp8 zero3", "tp8 zero0"} <= names
    for candidate in (*found.fitting, *found.tight):
        layout = candidate.job.layout
        whole = layout.model_parallel * layout.pipeline_stage == 1
        assert not (whole and layout.zero_stage < 3), f"{candidate.name} replicates 138 GB"
    told = text(found)
    assert re.search(r"frozen weights: 138 GB at 16 bits, 17\.\d GB per device in dp8 zero3", told)
    assert "load peak: a process that holds all its weights before they are sharded needs 128.5 GiB" in told


def test_d08_4_bit_adapters_of_70b() -> None:
    """One 40 GB device is too little for whole 4-bit weights; 4 x 24 GB would train them sharded, but not load them."""
    one = lora(1, "a100-40g", 4)
    assert one.best is None
    assert one.over[0].needed == pytest.approx(48e9, rel=0.15)
    assert smallest_that_fits(one.question).question.cluster.num_devices == 2
    four = only(lora(4, "rtx-4090", 4, fix="dp=4,zero=3,mbs=1,recompute=all"))
    assert four.fit == "over"
    moments = {moment.name: moment.total for moment in four.memory.worst.moments}
    training = max(size for name, size in moments.items() if name != "loading")
    assert training < 0.92 * four.limit < four.limit < moments["loading"]
    assert re.match(r"loading takes [\d.]+ GiB, before weights are sharded; training", memory_miss(four).reason)


def test_adapters_prefer_data_parallel_to_tensor_parallel() -> None:
    """Where the frozen weights fit whole, data parallel with recomputation and ZeRO beats cutting them."""
    adapter = Adapter(rank=16)
    found = answer("llama2-13b", 8, "a100-80g", batch=64, seq=4096, framework="torchtitan", adapter=adapter)
    best = found.best.job.layout
    assert best.data_parallel * best.context_parallel == 8
    assert "data parallel alone fits" in text(found)


def test_rules_of_thumb_of_adapters() -> None:
    """Frozen weights take 2 GB per billion parameters at 16 bits and 0.5 at 4 (LLaMA-Factory hardware table)."""
    for bits, expected in ((16, 2.0), (4, 0.5)):
        adapter = Adapter(rank=8, base_bits=bits)
        asked = question(
            "llama2-7b", 1, "a100-80g", batch=1, seq=128, framework="deepspeed", adapter=adapter, fix="recompute=all"
        )
        (candidate,) = search(asked).fitting
        weights = candidate.memory.worst.peak.parts["weights"]
        assert weights / total(asked.model, padded=True) == pytest.approx(expected, rel=0.15)


def test_levers_hold_the_run_the_same() -> None:
    asked = question("llama2-13b", 8, "a100-40g", batch=32, seq=4096, fix="dp=8,zero=1,mbs=4,recompute=none")
    base = only(search(asked))
    found = levers(asked, base)
    assert len(found) >= 6
    for lever in found:
        job = lever.candidate.job
        assert job.batch.global_batch_size == 32
        assert job.seq_length == 4096
        assert job.layout.world_size == 8
        assert lever.saves == pytest.approx(base.needed - lever.candidate.needed)
        assert lever.saves > 0
    order = [lever.candidate.fit == "over" for lever in found]
    assert order == sorted(order)
