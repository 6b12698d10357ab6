"""Ranks and coordinates for any mesh order."""

import subprocess
import sys
from itertools import permutations

import pytest

from meshwright.spec.layout import DEFAULT_MESH_ORDER, Coordinates, Layout

SIZES = {"data_parallel": 2, "pipeline_stage": 3, "context_parallel": 2, "model_parallel": 4}


@pytest.mark.parametrize("order", list(permutations(DEFAULT_MESH_ORDER)), ids="-".join)
def test_ranks_and_coordinates_are_inverse(order: tuple[str, ...]) -> None:
    layout = Layout(mesh_order=order, **SIZES)  # type: ignore[arg-type]
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size == 48
    assert [layout.rank(place) for place in places] == list(range(48))
    assert getattr(layout.coordinates(1), order[-1]) == 1
    assert getattr(layout.coordinates(47), order[0]) == layout.size(order[0]) - 1  # type: ignore[arg-type]


def test_default_order_keeps_tensor_groups_on_neighbouring_ranks() -> None:
    layout = Layout(**SIZES)
    assert [layout.coordinates(rank).model for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert layout.coordinates(24) == Coordinates(data=1, pipeline=0, context=0, model=0)


def test_pipeline_can_be_outermost() -> None:
    layout = Layout(data_parallel=2, pipeline_stage=2, mesh_order=("pipeline", "data", "context", "model"))
    assert [layout.coordinates(rank).pipeline for rank in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("rank", [-1, 48])
def test_rank_outside_the_world(rank: int) -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.47"):
        Layout(**SIZES).coordinates(rank)


def test_shards_of_optimizer_states() -> None:
    assert Layout(**SIZES).zero_shards == 1
    assert Layout(zero_stage=1, **SIZES).zero_shards == 4
    assert Layout(zero_stage=1, zero_group_size=2, **SIZES).zero_shards == 2


def test_short_name() -> None:
    assert Layout(zero_stage=1, **SIZES).short() == "dp2 tp4 pp3 cp2 zero1"
    assert Layout().short() == "dp1 zero0"


def test_spec_never_imports_torch_or_pydantic() -> None:
    code = (
        "import sys, pkgutil, importlib, meshwright.spec as spec\n"
        "for module in pkgutil.iter_modules(spec.__path__): importlib.import_module(f'meshwright.spec.{module.name}')\n"
        "assert 'meshwright.spec.rules' in sys.modules\n"
        "sys.exit(bool({'torch', 'pydantic', 'numpy', 'yaml'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
