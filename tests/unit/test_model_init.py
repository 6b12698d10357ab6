"""Initial weights: a matter of seed and name only, with the spread that the spec says."""

import math
from dataclasses import replace

import pytest
import torch

from meshwright.model.decoder import Decoder
from meshwright.model.init import BLOCK_ROWS, init_weights, initial_rows
from meshwright.spec.model import ModelSpec

SPEC = ModelSpec(
    num_layers=4,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=503,
    attention_bias=True,
    qk_norm=True,
)
NAME = "layers.0.mlp.up_proj.weight"


def weights(spec: ModelSpec = SPEC, seed: int = 7, layers: tuple[int, ...] | None = None) -> dict[str, torch.Tensor]:
    model = Decoder(spec, seq_length=8)
    if layers is not None:
        model.keep_stage(layers, first=False, last=False)
    init_weights(model, spec, seed)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def rows(name: str, start: int, stop: int, size: int = 1000, seed: int = 7) -> torch.Tensor:
    return initial_rows(SPEC, seed, name, torch.Size((size, 8)), start, stop)


def test_same_seed_same_weights_whatever_was_drawn_before() -> None:
    first = weights()
    torch.manual_seed(99)
    torch.rand(17)
    second = weights()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_stage_has_the_weights_of_the_whole_model() -> None:
    whole, stage = weights(), weights(layers=(2, 3))
    assert stage.keys() < whole.keys()
    assert all(torch.equal(stage[name], whole[name]) for name in stage)


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    model = Decoder(SPEC, seq_length=8)
    torch.set_rng_state(before)
    init_weights(model, SPEC, 7)
    assert torch.equal(torch.get_rng_state(), before)


def test_names_and_seeds_give_different_weights() -> None:
    whole = [rows(NAME, 0, 1000), rows(NAME, 0, 1000, seed=8), rows("layers.1.mlp.up_proj.weight", 0, 1000)]
    for i, a in enumerate(whole):
        for b in whole[i + 1 :]:
            assert torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1].abs() < 0.05
    blocks = whole[0][: 3 * BLOCK_ROWS].split(BLOCK_ROWS)
    assert not torch.equal(blocks[0], blocks[1])
    assert not torch.equal(blocks[1], blocks[2])


@pytest.mark.parametrize(("start", "stop"), [(0, 1000), (0, 1), (255, 257), (256, 512), (300, 900), (999, 1000)])
def test_any_run_of_rows_is_part_of_the_whole(start: int, stop: int) -> None:
    assert torch.equal(rows(NAME, start, stop), rows(NAME, 0, 1000)[start:stop])


def test_spread() -> None:
    spec = replace(SPEC, hidden_size=256, intermediate_size=512, init_std=0.03)
    for name, value in weights(spec).items():
        if "norm" in name:
            assert value.eq(1).all(), name
        elif name.endswith(".bias"):
            assert value.eq(0).all(), name
        else:
            narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = 0.03 / math.sqrt(8) if narrow else 0.03
            real = value[:503] if name in ("embedding.weight", "head.weight") else value
            assert real.std().item() == pytest.approx(std, rel=0.03), name
            assert abs(real.mean().item()) < 5 * std / math.sqrt(real.numel()), name


def test_b04_padding_rows_are_zero_and_the_rest_does_not_depend_on_them() -> None:
    padded, bare = weights(), weights(replace(SPEC, vocab_pad_multiple=1))
    for name in ("embedding.weight", "head.weight"):
        assert padded[name].shape[0] == 512
        assert padded[name][503:].eq(0).all()
        assert padded[name][:503].ne(0).any(dim=1).all()
        assert initial_rows(SPEC, 7, name, torch.Size((512, 64)), 505, 510).eq(0).all()
        assert torch.equal(padded[name][:503], bare[name])
