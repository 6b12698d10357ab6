"""What memory is made of in a dry run (B-09): parts that add up, logits, stages, micro-batches, bytes a parameter."""

from dataclasses import replace
from functools import cache

import pytest

from meshwright.dryrun.run import DryRun, dry_run, stage_ranks
from meshwright.spec.cluster import GIB
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import total
from meshwright.spec.training import Batch, Precision, Recompute, TrainSpec

MODEL = ModelSpec(
    num_layers=8, hidden_size=512, num_heads=4, num_kv_heads=4, head_dim=128, intermediate_size=1024, vocab_size=2048
)
TINY_BUT_WIDE = replace(
    MODEL, num_layers=1, hidden_size=64, num_heads=2, num_kv_heads=2, head_dim=32, vocab_size=151936
)
PIPELINE = Layout(pipeline_stage=4)
O2 = Precision(amp_level="O2", dtype="bfloat16")
ALL = Recompute(layers="all")
STATES = ("weights", "gathered weights", "gradients", "optimizer")


@cache
def run(layout: Layout, number: int = 1, rank: int = 0, model: ModelSpec = MODEL, **changes) -> DryRun:
    """A dry run of ``number`` micro-batches of one sequence, fast where that pays."""
    batch = Batch(micro_batch_size=1, micro_batch_num=number, global_batch_size=number * layout.data_parallel)
    train = TrainSpec(**{"seq_length": 1024, "batch": batch, "precision": O2, **changes})
    return dry_run((model, layout, train), rank, fast=number > 8)


def test_b09_parts_add_up_on_every_stage_and_in_every_phase():
    layout = Layout(data_parallel=2, model_parallel=2, pipeline_stage=2, zero_stage=1, use_seq_parallel=True)
    for rank in stage_ranks(layout):
        peaks = run(layout, 2, rank).memory.phases
        assert list(peaks) == ["forward", "backward", "gradients", "optimizer"]
        for peak in peaks.values():
            assert sum(peak.categories.values()) == peak.bytes == sum(peak.modules.values())
        assert {*STATES, "saved activations", "communication"} <= set(peaks["backward"].categories)


@pytest.mark.parametrize(("ways", "gib"), [(1, 4.64), (2, 2.32)])
def test_b09_logits_of_8192_tokens_in_fp32(ways: int, gib: float):
    layout = Layout(model_parallel=ways, use_seq_parallel=ways > 1)
    fp32 = {"seq_length": 8192, "precision": Precision(amp_level="O0"), "model": TINY_BUT_WIDE}
    whole = logits(run(layout, **fp32)) / GIB
    assert whole == pytest.approx(gib, abs=0.005)
    chunked = logits(run(layout, **fp32, loss_chunk_tokens=1024)) / GIB
    assert chunked == pytest.approx(gib / 8, abs=0.01)


def test_b09_micro_batches_cost_memory_under_gpipe_only():
    """From as many micro-batches as stages on, 1f1b holds no more of them; what is added up is there from then on."""
    few, many = (run(PIPELINE, number, recompute=ALL).allocated for number in (4, 32))
    assert few <= many < 1.02 * few
    gpipe = replace(PIPELINE, pipeline_schedule="gpipe")
    few, many = (activations(run(gpipe, number, recompute=ALL)) for number in (4, 8))
    assert many > 1.9 * few


def test_b09_without_recomputation_the_sum_of_gradients_meets_all_activations_from_one_micro_batch_more_on():
    few, enough, many = (run(PIPELINE, number).allocated for number in (4, 5, 32))
    assert few < enough
    assert enough <= many < 1.002 * enough


def test_b09_1f1b_needs_less_from_stage_to_stage():
    """Between stages alike: the first has the embedding, the last the head and the loss."""
    first, second, third, _ = (run(PIPELINE, 5, rank).allocated for rank in stage_ranks(PIPELINE))
    assert first > 1.15 * second > 1.15 * 1.15 * third


def test_b09_zero_0_takes_18_bytes_a_parameter():
    """fp32 weights 4, both moments 8, the fp32 sum of gradients 4, bf16 copies for compute 2."""
    peak = run(Layout(data_parallel=2), 2).memory.phases["forward"]
    share = {name: peak.categories[name] / total(MODEL, padded=True) for name in STATES}
    assert share == pytest.approx({"weights": 4, "gathered weights": 2, "gradients": 4, "optimizer": 8}, rel=0.01)


def logits(result: DryRun) -> int:
    """Bytes of logits and loss at the worst moment of forward."""
    return result.memory.phases["forward"].categories["logits and loss"]


def activations(result: DryRun) -> int:
    """Bytes that the peak holds for backward."""
    return result.memory.peak.categories["saved activations"]
