"""Layer maps (B-02)."""

import pytest

from meshwright.spec.layers import (
    describe_layer_map,
    even_cut,
    layer_map,
    layer_violations,
    virtual_stage_map,
)
from meshwright.spec.layout import Layout
from meshwright.spec.parameters import parameter_counts, stage_counts, stage_of, total
from meshwright.spec.presets import preset


def test_b02a_80_layers_in_virtual_stages_of_2() -> None:
    with pytest.raises(ValueError, match=r"80 layers.*x 2 layers per virtual stage = 32.*: 1, 5$"):
        virtual_stage_map(80, 16, 2)
    stages = virtual_stage_map(80, 16, 1)
    assert sorted(layer for stage in stages for layer in stage) == list(range(80))
    assert stages[1] == (1, 17, 33, 49, 65)


@pytest.mark.parametrize("stages", [2, 4])
def test_b02b_27_layers_uneven(stages: int) -> None:
    cut = layer_map(27, Layout(pipeline_stage=stages))
    assert [layer for stage in cut for layer in stage] == list(range(27))
    sizes = [len(stage) for stage in cut]
    assert max(sizes) - min(sizes) == 1
    assert sizes[-1] == min(sizes)


def test_b02b_map_is_printed() -> None:
    cut = layer_map(27, Layout(pipeline_stage=2))
    assert describe_layer_map(cut) == "stage 0: layers 0-13 | stage 1: layers 14-26"


def test_b02c_6_layers_8_stages() -> None:
    with pytest.raises(ValueError, match="6 layers cannot fill 8 stages"):
        layer_map(6, Layout(pipeline_stage=8))
    assert layer_violations(6, Layout(pipeline_stage=8))[0].legal == ("6", "5", "4")


@pytest.mark.parametrize("name", ["llama3.2-1b", "llama3-8b"], ids=["tied", "untied"])
def test_b02_parameters_over_stages_sum_to_the_model(name: str) -> None:
    spec = preset(name)
    stages = layer_map(spec.num_layers, Layout(pipeline_stage=5))
    counts = stage_counts(parameter_counts(spec), stages)
    assert len(counts) == 5
    assert sum(counts) == total(spec)
    assert counts[0] > counts[1]


def test_owner_of_each_kind_of_parameter() -> None:
    stages = ((0, 1), (2,), (3,))
    names = [
        "embedding.weight",
        "layers.1.mlp.up_proj.weight",
        "layers.2.mlp_norm.weight",
        "norm.weight",
        "head.weight",
    ]
    assert [stage_of(name, stages) for name in names] == [0, 0, 1, 2, 2]


def test_left_over_layers_go_before_the_last_stage() -> None:
    assert even_cut(10, 4) == (2, 3, 3, 2)
    assert even_cut(9, 4) == (2, 2, 3, 2)
    assert even_cut(11, 4) == (3, 3, 3, 2)


def test_cut_by_hand() -> None:
    assert layer_map(20, Layout(pipeline_stage=2, stage_layers=(9, 11)))[1] == tuple(range(9, 20))


@pytest.mark.parametrize(
    ("by_hand", "message"),
    [
        ((9, 10), "places 19 layers, the model has 20"),
        ((5, 5, 10), "3 entries for pipeline_stage 2"),
        ((20, 0), "without layers"),
    ],
)
def test_bad_cut_by_hand(by_hand: tuple[int, ...], message: str) -> None:
    violation = layer_violations(20, Layout(pipeline_stage=2, stage_layers=by_hand))[0]
    assert violation.key_path == "parallel_config.stage_layers"
    assert message in violation.message
    assert violation.legal == ("[10, 10]",)


def test_virtual_stages_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="none with pipeline_stage 4"):
        virtual_stage_map(27, 4, 3)
