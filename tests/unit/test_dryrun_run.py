"""What a dry run says of whole configs: on which stage memory is largest, what is refused, and the fast mode."""

from dataclasses import replace
from functools import cache
from itertools import groupby

import pytest

from meshwright.dryrun import fast
from meshwright.dryrun.analysis import category
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
GPIPE = replace(PIPELINE, pipeline_schedule="gpipe")


def train(layout: Layout, number: int, **changes) -> TrainSpec:
    batch = Batch(micro_batch_size=2, micro_batch_num=number, global_batch_size=2 * number * layout.data_parallel)
    return TrainSpec(seq_length=256, batch=batch, **{"precision": O2, **changes})


@cache
def run(layout: Layout, micro_batch_num: int, rank: int = 0, model: ModelSpec = MODEL, **changes) -> DryRun:
    """A dry run of one step, the same for the same question."""
    options = {key: changes.pop(key) for key in ("fast", "target_name", "steps") if key in changes}
    return dry_run((model, layout, train(layout, micro_batch_num, **changes)), rank, **{"steps": 1, **options})


def activations(result: DryRun) -> int:
    return result.memory.peak.categories["saved activations"]


def test_1f1b_holds_fewer_activations_from_stage_to_stage():
    held = [activations(run(PIPELINE, 8, rank)) for rank in stage_ranks(PIPELINE)[:3]]
    assert held[0] > 1.2 * held[1] > 1.2 * 1.2 * held[2]


def test_1f1b_does_not_grow_with_micro_batches_and_gpipe_does():
    assert activations(run(PIPELINE, 8)) < 1.05 * activations(run(PIPELINE, 4))
    assert activations(run(GPIPE, 8)) > 1.9 * activations(run(GPIPE, 4))


def test_states_are_those_of_zero():
    """fp32 weights and moments: 12 bytes a parameter at ZeRO-0, a quarter of it on each of four ranks above."""
    model = replace(MODEL, num_layers=2)
    parameters = total(model, padded=True)
    for stage, ways in ((0, 1), (1, 4), (2, 4), (3, 4)):
        peak = run(Layout(data_parallel=4, zero_stage=stage), 1, model=model).memory.peak
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


@pytest.mark.parametrize(
    ("layout", "turns"),
    [
        (replace(PIPELINE, zero_stage=3), "f0 f1 f2 b0 f3 b1 f4 b2 b3 b4"),
        (replace(GPIPE, zero_stage=2), "f0 f1 f2 f3 f4 b0 b1 b2 b3 b4"),
    ],
    ids=["1f1b", "gpipe"],
)
def test_micro_batches_and_layers_are_told_under_every_schedule(layout, turns):
    """What a layer keeps in a micro-batch is freed in its backward of the same one; so is what it recomputes."""
    model = replace(MODEL, num_layers=8)
    tape = run(layout, 5, rank=1, model=model, recompute=Recompute(select=("elementwise",))).execution.tape
    moments = [tape.events[index].moment for index in tape.step(0)]
    told = [f"{m.phase[0]}{m.micro_batch}" for m in moments if m.module.startswith("layers.")]
    assert " ".join(turn for turn, _ in groupby(told)) == turns
    ends = {}
    for record in {event.record for event in tape.events}:
        if record.died is not None and record.born.module.startswith("layers."):
            ends.setdefault(category(record, 0), []).append((record.born, record.died))
    # But for the stage's result, which waits for its message.
    kept = [pair for pair in ends["saved activations"] if pair[1].phase == "backward" and pair[1].module]
    assert len(kept) >= len(ends["saved activations"]) - 5
    assert len(kept) > 50 < len(ends["recomputed"])
    for born, died in kept + ends["recomputed"]:
        assert born.micro_batch == died.micro_batch
        # Or in that of the next layer, which it is the input of.
        assert int(died.module.split(".")[1]) - int(born.module.split(".")[1]) in (0, 1)


FAST = {
    "1f1b first stage": (Layout(data_parallel=2, pipeline_stage=4, zero_stage=2), 8, 0, {}),
    "1f1b middle stage": (Layout(model_parallel=2, pipeline_stage=5, use_seq_parallel=True), 7, 2, {}),
    "1f1b as many micro-batches as stages": (
        Layout(data_parallel=2, pipeline_stage=5, zero_stage=1),
        5,
        0,
        {"recompute": Recompute(layers="all"), "loss_chunk_tokens": 64},
    ),
    "gpipe last stage": (
        Layout(pipeline_stage=2, data_parallel=2, zero_stage=1, pipeline_schedule="gpipe"),
        6,
        1,
        {"recompute": Recompute(layers="all")},
    ),
    "no pipeline": (Layout(data_parallel=4, zero_stage=3), 5, 0, {"loss_chunk_tokens": 128}),
    "messages of two layers": (
        Layout(data_parallel=4, zero_stage=3, comm_fusion=2),
        1,
        0,
        {"recompute": Recompute(select=("attention", "communication", "elementwise")), "precision": Precision()},
    ),
}


@pytest.mark.parametrize("case", FAST)
def test_fast_agrees_with_the_whole_run(case, monkeypatch):
    layout, number, rank, changes = FAST[case]
    model = replace(MODEL, num_layers=max(5 * layout.pipeline_stage, 5 * layout.comm_fusion))
    # Several steps: the fast mode looks at the first only.
    whole = run(layout, number, rank, model, steps=2, **changes)
    monkeypatch.setattr(fast, "AFFORDABLE", 0)
    quick = run(layout, number, rank, model, fast=True, **changes)
    assert quick.estimated
    assert not whole.estimated
    for phase, peak in whole.memory.phases.items():
        assert quick.memory.phases[phase].bytes == pytest.approx(peak.bytes, rel=1e-3)
    assert quick.reserved.native == pytest.approx(whole.reserved.native, rel=0.02)
    assert quick.reserved.expandable == pytest.approx(whole.reserved.expandable, rel=0.02)
    assert quick.traffic.flops == whole.traffic.flops
    assert set(quick.traffic.messages) == set(whole.traffic.messages)


def test_fast_runs_in_full_what_is_short():
    quick, whole = run(PIPELINE, 8, fast=True), run(PIPELINE, 8)
    assert not quick.estimated
    assert quick.memory == whole.memory


def test_layers_that_differ_are_run_in_full(monkeypatch):
    monkeypatch.setattr(fast, "AFFORDABLE", 0)
    result = run(Layout(), 1, fast=True, recompute=Recompute(layers=(1, 3)))
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
