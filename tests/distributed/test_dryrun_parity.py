"""Every row of the parity table is dry-run: what can be trained can be simulated."""

from dataclasses import replace

import pytest

import parity_rows as table
from meshwright.dryrun.found import run_whole
from meshwright.dryrun.reduced import Problem
from meshwright.dryrun.target import target
from meshwright.spec.layers import layer_map
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import parameter_counts, stage_counts
from meshwright.spec.training import TrainSpec

ROWS = (*table.fp32_rows(), *table.sixteen_bit_rows())
CUDA = replace(target("cuda"), cached=False)
"""Without the allocator's replay, which does not depend on the layout."""


def states(spec: ModelSpec, layout: Layout, train: TrainSpec, rank: int) -> float:
    """Bytes of weights and moments of a rank, if everything that can be split is."""
    stages = stage_counts(parameter_counts(spec), layer_map(spec.num_layers, layout))
    ways = layout.model_parallel * (1 if layout.zero_stage == 0 else layout.zero_shards)
    each = 2 if train.precision.amp_level == "O3" else 4
    return 3 * each * stages[layout.coordinates(rank).pipeline] / ways


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[table.name_of(row) for row in ROWS])
def test_row_is_dry_run(index):
    row = ROWS[index]
    layout, spec = table.layout_of(row), table.model_of(row)
    train, rank = table.short_train_of(row, layout), index % layout.world_size
    memory = run_whole(Problem(model=spec, layout=layout, train=train, rank=rank), CUDA, steps=1).memory
    assert set(memory.phases) == {"forward", "backward", "gradients", "optimizer"}
    for peak in memory.phases.values():
        assert sum(peak.categories.values()) == sum(peak.modules.values()) == peak.bytes
        assert min(peak.categories.values()) > 0
    held = sum(memory.peak.categories[name] for name in ("weights", "optimizer"))
    assert states(spec, layout, train, rank) <= held < memory.peak.bytes
