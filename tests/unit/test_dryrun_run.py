"""What a dry run says of whole configs: on which stage memory is largest, what is refused, and the fast mode."""

from dataclasses import replace

import pytest

from meshwright.dryrun.refuse import DryRunRefused
from meshwright.dryrun.run import DryRun, dry_run, stage_ranks
from meshwright.dryrun.verdict import Verdict, outside_allocator, verdict
from meshwright.spec.catalogue import device
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import total
from meshwright.spec.training import Batch, Precision, Recompute, TrainSpec

MODEL = ModelSpec(
    num_layers=4, hidden_size=256, num_heads=4, num_kv_heads=2, head_dim=64, intermediate_size=512, vocab_size=1000
)
O2 = Precision(amp_level="O2", dtype="bfloat16")
PIPELINE = Layout(data_parallel=2, pipeline_stage=4, zero_stage=1)


def train(layout: Layout, number: int, **changes) -> TrainSpec:
    batch = Batch(micro_batch_size=2, micro_batch_num=number, global_batch_size=2 * number * layout.data_parallel)
    return TrainSpec(seq_length=256, batch=batch, **{"precision": O2, **changes})


def run(layout: Layout, micro_batch_num: int, rank: int = 0, model: ModelSpec = MODEL, **changes) -> DryRun:
    options = {key: changes.pop(key) for key in ("fast", "target_name") if key in changes}
    return dry_run((model, layout, train(layout, micro_batch_num, **changes)), rank, **options)


def activations(result: DryRun) -> int:
    return result.memory.peak.categories["saved activations"]


def test_1f1b_holds_fewer_activations_from_stage_to_stage():
    held = [activations(run(PIPELINE, 8, rank)) for rank in stage_ranks(PIPELINE)[:3]]
    assert held[0] > 1.2 * held[1] > 1.2 * 1.2 * held[2]


def test_1f1b_does_not_grow_with_micro_batches_and_gpipe_does():
    gpipe = replace(PIPELINE, pipeline_schedule="gpipe")
    assert activations(run(PIPELINE, 12)) < 1.05 * activations(run(PIPELINE, 6))
    assert activations(run(gpipe, 12)) > 1.9 * activations(run(gpipe, 6))


def test_states_are_those_of_zero():
    """fp32 weights and moments: 12 bytes a parameter at ZeRO-0, a quarter of it on each of four ranks above."""
    parameters = total(MODEL, padded=True)
    for stage, ways in ((0, 1), (1, 4), (2, 4), (3, 4)):
        peak = run(Layout(data_parallel=4, zero_stage=stage), 2).memory.peak
        assert peak.categories["weights"] == pytest.approx(4 * parameters / ways, rel=0.01)
        assert peak.categories["optimizer"] == pytest.approx(8 * parameters / ways, rel=0.01)


def test_recomputation_trades_saved_activations_for_flops():
    kept, recomputed = run(Layout(), 2), run(Layout(), 2, recompute=Recompute(layers="all"))
    assert activations(recomputed) < 0.3 * activations(kept)
    assert 1.2 < recomputed.traffic.flops / kept.traffic.flops < 1.34
    assert "recomputed" not in kept.memory.peak.categories
    assert "recomputed" in recomputed.memory.phases["backward"].categories


def test_collectives_are_counted_by_group():
    layout = Layout(data_parallel=2, model_parallel=2, pipeline_stage=2, zero_stage=3, use_seq_parallel=True)
    found = {(message.kind, message.ranks): message for message in run(layout, 2, rank=5).traffic.messages}
    assert layout.coordinates(5).pipeline == 0
    # Two layers and the embedding, in each micro-batch.
    assert found["reduce_scatter", (1, 5)].count == 2 * 3
    assert found["send", (7,)].count == found["receive", (7,)].count == 2
    assert found["send", (7,)].bytes == 2 * 2 * 256 // 2 * 256 * 2
    assert ("all_gather", (4, 5)) in found


FAST = {
    "1f1b first stage": (Layout(data_parallel=2, pipeline_stage=4, zero_stage=2), 8, 0, {}),
    "1f1b middle stage": (Layout(model_parallel=2, pipeline_stage=5, use_seq_parallel=True), 7, 2, {}),
    "gpipe last stage": (
        Layout(pipeline_stage=2, data_parallel=2, zero_stage=1, pipeline_schedule="gpipe"),
        6,
        1,
        {"recompute": Recompute(layers="all")},
    ),
    "no pipeline": (Layout(data_parallel=4, zero_stage=3), 5, 0, {"loss_chunk_tokens": 128}),
    "one micro-batch": (Layout(data_parallel=2, zero_stage=1), 1, 0, {"recompute": Recompute(select=("elementwise",))}),
}


@pytest.mark.parametrize("case", FAST)
def test_fast_agrees_with_the_whole_run(case):
    layout, number, rank, changes = FAST[case]
    model = replace(MODEL, num_layers=5 * layout.pipeline_stage)
    fast, whole = (run(layout, number, rank, model, fast=choice, **changes) for choice in (True, False))
    assert fast.estimated
    assert not whole.estimated
    for phase, peak in whole.memory.phases.items():
        assert fast.memory.phases[phase].bytes == pytest.approx(peak.bytes, rel=1e-3)
    assert fast.traffic.flops == whole.traffic.flops
    assert set(fast.traffic.messages) == set(whole.traffic.messages)


def test_layers_that_differ_are_run_in_full():
    result = run(Layout(), 2, fast=True, recompute=Recompute(layers=(1, 3)))
    assert not result.estimated


def test_the_allocator_holds_more_than_is_allocated_and_cpus_have_none():
    result = run(PIPELINE, 4)
    assert result.reserved is not None
    assert result.reserved.native > result.allocated < result.reserved.expandable
    assert run(PIPELINE, 4, target_name="cpu").reserved is None


def test_verdicts_say_what_is_missing():
    result = run(Layout(), 2)
    outside = outside_allocator(result, device("h100"))

    def on(memory: float) -> Verdict:
        return verdict(result, replace(device("h100"), memory_bytes=outside + memory))

    assert on(result.reserved.native).fits
    tight = on(result.reserved.native - 1)
    assert tight.fits
    assert "emptying" in tight.text
    small = on(result.allocated / 2)
    assert not small.fits
    assert small.spare < 0
    assert "too much" in small.text


@pytest.mark.parametrize(
    ("layout", "changes", "key"),
    [
        (Layout(), {"compile": True}, "train.compile"),
        (Layout(context_parallel=2), {}, "parallel_config.context_parallel"),
        (Layout(pipeline_stage=4, pipeline_schedule="zero_bubble"), {}, "parallel_config.pipeline_schedule"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(layout, changes, key):
    with pytest.raises(DryRunRefused) as refusal:
        run(layout, 4, **changes)
    assert key in [violation.key_path for violation in refusal.value.violations]


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(ValueError, match=r"rank 8 is outside 0\.\.7"):
        run(PIPELINE, 4, rank=8)
