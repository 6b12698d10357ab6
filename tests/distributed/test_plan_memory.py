"""The planner's peak memory against the allocator's events of the real step, on real ranks.

`memory_rows.main` runs the whole table; here is one row for each part of the model.
"""

import pytest

from memory_rows import ROWS, stage_errors

ROW = {row.name: row for row in ROWS}
TOLERANCE = 3.0


@pytest.mark.parametrize(
    "name",
    [
        "one rank, weights dominate",
        "one rank, recompute elementwise and attention",
        "one rank, chunked loss",
        "dp2 zero0 O2, weights dominate",
        "dp2 zero2 O2, 2 micro-batches",
        "dp2 zero3 O2, recompute elementwise and attention",
        "tp2 sequence parallel",
        "pp2 1f1b, 8 micro-batches",
        "pp2 gpipe, 4 micro-batches, documents apart, windows",
    ],
)
def test_peak_of_a_real_step(name):
    for stage in stage_errors(ROW[name]):
        assert stage.error == pytest.approx(0, abs=TOLERANCE), (name, stage)
