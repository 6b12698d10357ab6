"""The planner's closed form against the dry run: a draw small enough for every test run.

``python -m benchmarks.plan_vs_dryrun`` draws from real models; docs/plan-memory.md has its figures.
"""

from dataclasses import replace
from typing import get_args

import pytest

from meshwright.spec.model import ModelSpec
from meshwright.spec.support import PIPELINE_SCHEDULES
from meshwright.spec.training import Recompute, RecomputeKind

compare = pytest.importorskip("benchmarks.plan_vs_dryrun.compare")
drawing = pytest.importorskip("benchmarks.plan_vs_dryrun.draw")

UNTIED = ModelSpec(
    num_layers=4,
    hidden_size=1024,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
    intermediate_size=2816,
    vocab_size=32000,
)
MODELS = {"untied": UNTIED, "tied": replace(UNTIED, tie_word_embeddings=True)}
CASES = list(drawing.draw(6, 7, MODELS))
WINDOWS = replace(UNTIED, sliding_window=512, sliding_window_layers=(1,))
"""Beside isolated documents: layers with two different biases."""
ISOLATED = [drawing.isolated(case) for case in (*CASES[:2], *drawing.draw(2, 11, {"windows": WINDOWS}))]


def _long(case):
    """Where a bias outweighs all else: making it must not take more than keeping it."""
    train = replace(case.train, seq_length=32768, loss_chunk_tokens=1024, recompute=Recompute(layers="all"))
    return drawing.isolated(replace(case, train=train))


SMALL = replace(UNTIED, hidden_size=512, num_heads=8, num_kv_heads=8, intermediate_size=1024, vocab_size=2000)
LONG = [_long(case) for case in drawing.draw(1, 7, {"small": SMALL})]
TOLERANCE = 3.0


@pytest.mark.parametrize("case", [*CASES, *ISOLATED, *LONG], ids=lambda case: case.text)
def test_closed_form_and_dry_run_agree(case):
    row = compare.with_plan(compare.dry_row(case), case)
    assert row["error_pct"] == pytest.approx(0, abs=TOLERANCE), compare.line(row)


def test_draw_covers_what_training_supports():
    cases = list(drawing.draw(150, 0))
    assert {case.name for case in cases} == set(drawing.MODELS)
    assert {case.layout.zero_stage for case in cases} == {0, 1, 2, 3}
    assert {case.train.precision.amp_level for case in cases} == {"O0", "O1", "O2", "O3"}
    staged = {case.layout.pipeline_schedule for case in cases if case.layout.pipeline_stage > 1}
    assert staged == set(PIPELINE_SCHEDULES)
    selected = {kind for case in cases for kind in case.train.recompute.select}
    assert selected == set(get_args(RecomputeKind))
    assert {compare.kind_of(case) for case in cases} == {"none", "all", "half of the layers", "operators"}
    assert [case.text for case in drawing.draw(20, 0)] == [case.text for case in cases[:20]]
