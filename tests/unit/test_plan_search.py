"""The search: what it looks at, what it leaves out, and the answers that practice knows (CASES.md section D)."""

import math
import time
from dataclasses import replace

import pytest
from plan_questions import answer, only, question

from meshwright.plan.memory import predict_memory
from meshwright.plan.question import parse_fixed, parse_layout
from meshwright.plan.search import one_per_split, search
from meshwright.plan.time import predict_time
from meshwright.plan.time.schedule import makespan
from meshwright.plan.variants import variants
from meshwright.spec import rules, support
from meshwright.spec.cluster import GIB
from meshwright.spec.presets import preset
from meshwright.spec.training import Recompute

SMALL = replace(preset("llama-2m"), num_layers=6, vocab_pad_multiple=64)


def everything(asked):
    """(layout, batch, recompute) of every legal variant, by brute force over the groups."""
    return [
        (frame.layout, batch, recompute)
        for group in variants(asked, [])
        for frame in group.frames
        for batch in group.batches
        for recompute in group.recomputes
    ]


def test_every_layout_looked_at_is_legal_and_supported_and_none_is_twice() -> None:
    asked = question("llama2-13b", 8, "a100-80g", batch=16, seq=2048)
    found = everything(asked)
    assert len(set(found)) == len(found) == search(asked).considered
    for layout, batch, recompute in found:
        train = replace(asked.train, batch=batch, recompute=recompute)
        assert rules.violations(asked.model, layout, train, 8) == []
        assert support.unsupported(asked.model, layout, train) == []
        assert batch.global_batch_size == 16 == batch.micro_batch_size * layout.data_parallel * batch.micro_batch_num


def test_every_legal_split_of_the_devices_is_looked_at() -> None:
    asked = question(SMALL, 12, "a100-80g", batch=12, seq=96)
    illegal = []
    legal = {
        (frame.layout.data_parallel, frame.layout.model_parallel, frame.layout.pipeline_stage)
        for group in variants(asked, illegal)
        for frame in group.frames
    }
    # 8 heads and 4 key/value heads allow tp 1, 2, 4; 6 layers pp 1, 2, 3, 4, 6; 12 sequences every dp of 12 devices.
    expected = {
        (12 // (tp * pp), tp, pp)
        for tp in (1, 2, 4)
        for pp in (1, 2, 3, 4, 6)
        if 12 % (tp * pp) == 0 and 12 // (12 // (tp * pp)) >= pp
    }
    assert legal == expected
    refused = {(item.layout.model_parallel, item.layout.pipeline_stage) for item in illegal if not item.unsupported}
    assert (3, 1) in refused
    assert (1, 12) in refused


def test_leaving_out_predictions_loses_no_layout_that_fits() -> None:
    """The search skips variants above one that is over memory: brute force finds the same ones to fit."""
    asked = question("llama2-7b", 4, "a100-40g", batch=8, seq=2048)
    found = search(asked)
    brute = set()
    for group in variants(asked, []):
        for frame in group.frames:
            for batch in group.batches:
                for recompute in group.recomputes:
                    job = replace(frame, batch=batch, recompute=recompute)
                    if predict_memory(job).worst.device_total <= 0.92 * asked.limit:
                        brute.add(job)
    assert found.fits == len(brute)
    assert {candidate.job for candidate in found.fitting} <= brute
    assert 0 < len(brute) < found.considered
    # What is left out of the ranking recomputes more than a layout that is like it in all else.
    fastest = min(predict_time(job).seconds for job in brute)
    assert found.best.seconds == fastest
    kept = answer("llama2-7b", 4, "a100-40g", batch=8, seq=2048, objective="memory")
    assert {candidate.job for candidate in kept.fitting} == brute
    assert found.predicted < found.considered


def test_ranked_by_time_or_by_memory() -> None:
    by_time = answer("llama2-7b", 8, "a100-80g", batch=16, seq=2048)
    times = [round(candidate.seconds, 6) for candidate in by_time.fitting]
    assert times == sorted(times)
    by_memory = answer("llama2-7b", 8, "a100-80g", batch=16, seq=2048, objective="memory")
    needs = [candidate.needed for candidate in by_memory.fitting]
    assert needs == sorted(needs)
    assert len(needs) == by_memory.fits == by_time.fits > len(times)
    assert needs[0] < by_time.fitting[0].needed
    assert by_time.best.seconds == predict_time(by_time.best.job).seconds


def test_the_table_shows_different_splits_first() -> None:
    found = answer("llama2-7b", 8, "a100-80g", batch=16, seq=2048)
    rows = one_per_split(found.fitting, 10)
    splits = [(r.job.layout.data_parallel, r.job.layout.model_parallel, r.job.layout.pipeline_stage) for r in rows]
    assert len(set(splits)) == len(splits) == 10
    assert rows[0] is found.fitting[0]
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)


def test_fits_tight_and_over_are_shares_of_the_limit() -> None:
    free = only(answer("llama2-7b", 8, "a100-80g", batch=8, seq=2048, fix="dp=8,zero=3,mbs=1,recompute=all"))
    for share, expected in ((0.80, "fits"), (0.919, "fits"), (0.921, "tight"), (1.0, "tight"), (1.001, "over")):
        limited = replace(free, limit=free.needed / share)
        assert limited.fit == expected, share


def test_max_memory_moves_the_limit_down_only() -> None:
    wide = answer("llama2-7b", 8, "a100-80g", batch=8, seq=2048)
    narrow = answer("llama2-7b", 8, "a100-80g", batch=8, seq=2048, max_memory=30 * GIB)
    assert narrow.considered == wide.considered
    assert 0 < narrow.fits < wide.fits
    assert all(candidate.needed <= 0.92 * 30 * GIB for candidate in narrow.fitting)
    assert question("llama2-7b", 8, "a100-80g", batch=8, seq=2048, max_memory=500 * GIB).limit == pytest.approx(
        wide.question.cluster.device.memory_bytes
    )


@pytest.mark.parametrize(
    ("fix", "holds"),
    [
        ("tp=2", lambda job: job.layout.model_parallel == 2),
        ("dp=4,pp=2", lambda job: (job.layout.data_parallel, job.layout.pipeline_stage) == (4, 2)),
        ("zero=2", lambda job: job.layout.zero_stage == 2),
        ("mbs=2", lambda job: job.batch.micro_batch_size == 2),
        ("recompute=all", lambda job: job.recompute == Recompute(layers="all")),
        ("recompute=none", lambda job: job.recompute == Recompute()),
        ("pp=2,schedule=gpipe", lambda job: job.layout.pipeline_schedule == "gpipe"),
        ("tp=4,sp=off", lambda job: not job.layout.use_seq_parallel),
    ],
)
def test_what_is_fixed_stays(fix: str, holds) -> None:
    found = answer("llama2-7b", 8, "h100", batch=16, seq=2048, fix=fix)
    assert found.fitting
    assert all(holds(candidate.job) for candidate in found.fitting)


def test_context_parallel_is_ranked_on_request_only() -> None:
    plain = answer("llama2-7b", 8, "h100", batch=16, seq=8192)
    assert {candidate.job.layout.context_parallel for candidate in plain.fitting} == {1}
    wide = answer("llama2-7b", 8, "h100", batch=16, seq=8192, hypothetical=True)
    assert {candidate.job.layout.context_parallel for candidate in wide.fitting} > {1, 2, 4}
    assert "interleaved_1f1b" in {candidate.job.layout.pipeline_schedule for candidate in wide.fitting}


def test_engines_are_searched_on_their_own_terms() -> None:
    found = answer("llama2-7b", 8, "h100", batch=16, seq=4096, framework="megatron")
    jobs = [candidate.job for candidate in found.fitting]
    assert {job.layout.zero_stage for job in jobs} == {0, 1}
    assert {job.virtual_stages for job in jobs} >= {1, 2}
    for job in jobs:
        assert job.batch.micro_batch_num % job.layout.pipeline_stage == 0 or job.virtual_stages == 1
        assert 32 % (job.layout.pipeline_stage * job.virtual_stages) == 0


def test_weights_are_sharded_inside_nodes_or_over_all_ranks() -> None:
    found = answer("llama2-7b", 32, "a100-80g", batch=32, seq=2048, fix="tp=2,pp=1,zero=3")
    groups = {candidate.job.layout.zero_group_size for candidate in found.fitting}
    assert groups == {None, 4}, "4 of the 16 data ranks share a node of 8 devices at tensor degree 2"
    only_inside = answer("llama2-7b", 32, "a100-80g", batch=32, seq=2048, fix="tp=2,pp=1,zero=3,group=4")
    assert {candidate.name for candidate in only_inside.fitting} == {"dp16 tp2 zero3 group4"}


def test_70b_on_1024_devices_in_well_under_two_seconds() -> None:
    asked = question("llama3-70b", 1024, "h100", batch=1024, seq=8192)
    makespan.cache_clear()
    started = time.process_time()
    found = search(asked)
    seconds = time.process_time() - started
    assert found.considered > 1000
    assert found.fitting
    assert seconds < 2
    assert all(candidate.job.layout.model_parallel <= 8 for candidate in found.fitting)


def test_d01_70b_on_64_a100() -> None:
    """torchtitan docs/performance.md: batch 2 with selective recompute is out of memory; 1 fits, and 2 with full."""

    def fit(fix: str) -> str:
        return only(
            answer("llama2-70b", 64, "a100-80g", batch=128, seq=4096, framework="torchtitan", fix=f"dp=64,zero=3,{fix}")
        ).fit

    assert fit("mbs=2,recompute=select") == "over"
    assert fit("mbs=1,recompute=select") != "over"
    assert fit("mbs=2,recompute=all") == "fits"


def test_d02_8b_on_8_devices_of_96_and_80_gb_and_on_128() -> None:
    """torchtitan's H100 table of 2024-12, eager: 82.4 GiB on 8 devices, 67.0 on 128; 16 B/parameter give 14.0."""

    def needed(devices: int, hardware: str):
        fix = f"dp={devices},zero=3,group={devices},mbs=2,recompute=select"
        batch = 2 * devices
        return only(
            answer("llama3.1-8b", devices, hardware, batch=batch, seq=8192, framework="torchtitan", fix=fix, per_node=8)
        )

    few, many = needed(8, "h100-96g"), needed(128, "h100-96g")
    assert few.fit == "fits"
    assert needed(8, "h100-80g").fit == "over"
    assert few.memory.worst.reserved / GIB == pytest.approx(82.4, rel=0.10)
    assert many.memory.worst.reserved / GIB == pytest.approx(67.0, rel=0.10)
    assert 14.0 * 0.9 <= (few.needed - many.needed) / GIB <= 15.4 * 1.1


def test_d04_70b_on_256_devices_is_accepted_with_tensor_parallel_inside_a_node() -> None:
    fix = "tp=8,zero=3,mbs=16,recompute=all,pp=1,cp=1,sp=on"
    found = answer("llama3.1-70b", 256, "h100-96g", batch=512, seq=8192, framework="torchtitan", fix=fix)
    job = found.fitting[0].job
    assert job.layout.data_parallel == 32
    assert 32 * job.batch.micro_batch_size == 512
    assert job.layout.model_parallel <= job.cluster.devices_per_node
    links = {item.link for item in found.fitting[0].time.traffic if item.axis == "tensor"}
    assert links == {job.cluster.intra.name}


@pytest.mark.parametrize(
    ("devices", "hardware", "fits"),
    [(2, "a100-80g", False), (4, "a100-80g", True), (4, "a100-40g", False), (8, "a100-40g", True)],
)
def test_d07_13b_full_fine_tune(devices: int, hardware: str, fits: bool) -> None:
    """LLaMA2-Accessory#26: 13e9 x 16 bytes = 208 GB; 2 x 80 and 4 x 40 GB are too little, 4 x 80 and 8 x 40 not."""
    assert bool(answer("llama2-13b", devices, hardware, batch=128, seq=512).fitting) == fits


def test_d12_13b_on_8_devices_needs_the_optimizer_sharded() -> None:
    """States are N / (TP PP) x (4 + 12 / DP) bytes and more; DP8 is out of memory, without sharding DP4 MP2 too."""

    def one(fix: str):
        # The article's table is about a framework that keeps whole weights and gradients.
        fixed = f"{fix},mbs=1,recompute=none,schedule=1f1b,vpp=1,sp=on,cp=1"
        return only(answer("llama2-13b", 8, "a100-80g", batch=32, seq=2048, framework="deepspeed", fix=fixed))

    splits = ("dp=8", "dp=4,tp=2", "dp=2,tp=2,pp=2", "tp=4,pp=2,dp=1", "dp=2,pp=4")
    sharded = {split: one(f"{split},zero=1") for split in splits}
    assert sharded["dp=8"].fit == "over"
    assert all(sharded[split].fit == "fits" for split in splits[1:])
    needs = [sharded[split].needed for split in splits[:4]]
    assert needs == sorted(needs, reverse=True)
    for split, measured in zip(splits[1:4], (62, 48, 41), strict=True):
        assert sharded[split].needed / 1e9 == pytest.approx(measured, rel=0.15), split
    assert one("dp=4,tp=2,zero=0").fit == "over"


def test_d11_7b_at_32k_on_8_devices() -> None:
    """DeepSpeed#5305: sequence parallel 4 and tensor parallel 4 all fit; recomputation costs about 30 % more time."""

    def one(fix: str):
        fixed = f"dp=2,{fix},mbs=1"
        return only(answer("llama2-7b", 8, "a100-80g", batch=16, seq=32768, framework="deepspeed", fix=fixed))

    for split in ("cp=4,zero=3", "cp=4,zero=2", "tp=4,sp=on,zero=2"):
        kept, again = one(f"{split},recompute=none"), one(f"{split},recompute=all")
        assert kept.fit != "over", split
        assert again.needed < 0.75 * kept.needed, split
        assert 1.2 < again.seconds / kept.seconds < 1.4, split


@pytest.mark.parametrize(
    ("framework", "amp", "low", "high"), [("meshwright", "O2", 16, 18), ("litgpt", "O3", 7.9, 8.1)]
)
def test_rules_of_thumb_of_full_training(framework: str, amp: str, low: float, high: float) -> None:
    """Mixed precision takes 16 to 18 GB per billion parameters, 16 bits throughout 8 (LLaMA-Factory hardware table)."""
    from meshwright.spec.parameters import total

    asked = question("llama2-7b", 1, "b300", batch=1, seq=16, framework=framework, amp=amp)
    worst = search(asked).fitting[-1].memory.worst
    most = max(
        sum(moment.parts.get(part, 0.0) for part in ("weights", "gradients", "optimizer")) for moment in worst.moments
    )
    assert low <= most / total(asked.model, padded=True) <= high


def test_fixed_values_are_checked() -> None:
    assert parse_fixed(["tp=2, zero=1", "recompute=all"]) == {"tp": 2, "zero": 1, "recompute": "all"}
    for text, told in (
        ("tpp=2", "did you mean tp"),
        ("tp", "KEY=VALUE"),
        ("tp=0", "from 1"),
        ("tp=two", "from 1"),
        ("zero=4", "0, 1, 2, 3"),
        ("recompute=some", "none, select, all"),
        ("schedule=1f1", "gpipe, 1f1b"),
    ):
        with pytest.raises(ValueError, match=told):
            parse_fixed([text])


def test_layouts_are_read_as_they_are_printed() -> None:
    read = parse_layout("dp2 tp2 pp2 zero1 sp=off mbs4 1f1b recompute=none")
    degrees = {"dp": 2, "tp": 2, "pp": 2, "cp": 1, "ep": 1}
    assert read == degrees | {"zero": 1, "sp": "off", "mbs": 4, "schedule": "1f1b", "recompute": "none"}
    assert math.prod(int(parse_layout("tp8 zero0")[key]) for key in ("dp", "tp", "pp", "cp")) == 8
    for text in ("zero1", "tp8 zerro1", ""):
        with pytest.raises(ValueError):
            parse_layout(text)
