"""Any layout is the same run: loss, gradients and gradient norm against one process (B-12, B-14)."""

import pytest

import parity_rows as table
from meshwright.spec.rules import violations
from meshwright.spec.support import unsupported
from pairwise import all_pairs, pairs_of

WITHOUT = {
    axis: [name for name, ways in table.LAYOUTS.items() if axis not in ways]
    for axis in ("data_parallel", "model_parallel", "pipeline_stage")
}


def pair(one, other):
    return frozenset({one, other})


def too_large(errors, limits):
    """Errors that are not within their limit; a NaN never is."""
    return {name: errors[name] for name, limit in limits.items() if not errors[name] <= limit}


def meaningless_pairs(layouts):
    """The pairs that say nothing, by hand: the table may leave out these and no others."""
    left_out = {pair(("zero", "zero0"), ("shards", "in_groups"))}
    for layout in layouts:
        if layout in WITHOUT["pipeline_stage"]:
            left_out |= {pair(("layout", layout), ("schedule", s)) for s in ("gpipe", "1f1b")}
        else:
            left_out.add(pair(("layout", layout), ("schedule", "no_pipeline")))
        if layout in WITHOUT["model_parallel"]:
            left_out.add(pair(("layout", layout), ("sequence", "split")))
        if layout in WITHOUT["data_parallel"]:
            left_out.add(pair(("layout", layout), ("shards", "in_groups")))
    return left_out


@pytest.mark.parametrize(
    ("rows", "factors"),
    [(table.fp32_rows(), table.FP32_FACTORS), (table.sixteen_bit_rows(), table.SIXTEEN_BIT_FACTORS)],
    ids=["fp32", "sixteen_bits"],
)
def test_table_covers_every_value_and_every_pair(rows, factors):
    covered = set().union(*map(pairs_of, rows))
    assert all_pairs(factors) - covered == meaningless_pairs(factors["layout"])
    assert {(name, value) for row in rows for name, value in row.items()} == {
        (name, value) for name, values in factors.items() for value in values
    }


def test_table_proves_precision_against_zero_with_and_without_a_pipeline():
    cells = {(row["format"], row["layout"], row["zero"]) for row in table.sixteen_bit_rows()}
    for name in table.FORMATS:
        for zero in ("zero0", "zero1", "zero2", "zero3"):
            assert {(name, "dp2tp2", zero), (name, "dp2pp2", zero)} <= cells


@pytest.mark.parametrize("row", [*table.fp32_rows(), *table.sixteen_bit_rows()], ids=table.name_of)
def test_row_is_legal_and_supported(row):
    layout = table.layout_of(row)
    request = (table.model_of(row), layout, table.train_of(row, layout))
    assert violations(*request, layout.world_size) == []
    assert unsupported(*request) == []


@pytest.mark.parametrize("row", table.fp32_rows(), ids=table.name_of)
def test_fp32(row):
    result = table.run_row(row)
    assert too_large(result.errors, table.FP32_LIMITS) == {}
    assert result.skipped == (0, 0)


@pytest.mark.parametrize("row", table.sixteen_bit_rows(), ids=table.name_of)
def test_sixteen_bits(row):
    result = table.run_row(row)
    assert too_large(result.errors, table.SIXTEEN_BIT_LIMITS) == {}
    assert result.skipped[0] == result.skipped[1]
