"""Rotary positions against the formula with complex numbers and fp64 angles."""

import math
from dataclasses import replace

import pytest
import torch

from meshwright.model.rope import RotaryTables, apply_rope, inverse_frequencies
from meshwright.spec.model import ModelSpec, RopeScaling

SPEC = ModelSpec(
    num_layers=1,
    hidden_size=64,
    num_heads=2,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=64,
    vocab_size=128,
    rope_theta=500000.0,
)
LENGTH = 300
CPU = torch.device("cpu")


def test_rotation_by_position_times_frequency() -> None:
    x = torch.randn(2, 3, LENGTH, 32)
    rotated = apply_rope(x, *RotaryTables(SPEC)(LENGTH, CPU))
    frequencies = SPEC.rope_theta ** (-torch.arange(16, dtype=torch.float64) / 16)
    turn = torch.polar(torch.ones(LENGTH, 16).double(), torch.outer(torch.arange(LENGTH).double(), frequencies))
    expected = torch.complex(x[..., :16].double(), x[..., 16:].double()) * turn
    assert (rotated[..., :16] - expected.real).abs().max() <= 1e-4
    assert (rotated[..., 16:] - expected.imag).abs().max() <= 1e-4


def test_scores_depend_on_the_distance_only() -> None:
    query, key = torch.randn(32), torch.randn(32)
    tables = RotaryTables(SPEC)(LENGTH, CPU)
    queries, keys = (apply_rope(x.expand(1, 1, LENGTH, 32), *tables)[0, 0] for x in (query, key))
    for distance in (0, 1, 50):
        scores = (queries[distance:] * keys[: LENGTH - distance]).sum(-1)
        assert (scores - scores[0]).abs().max() <= 1e-3


def test_dtype_is_kept_and_gradient_is_the_inverse_rotation() -> None:
    cos, sin = RotaryTables(SPEC)(LENGTH, CPU)
    assert apply_rope(torch.randn(1, 1, LENGTH, 32).bfloat16(), cos, sin).dtype == torch.bfloat16
    x = torch.randn(1, 1, LENGTH, 32, requires_grad=True)
    grad = torch.randn_like(x)
    apply_rope(x, cos, sin).backward(grad)
    assert (x.grad - apply_rope(grad, cos, -sin)).abs().max() <= 1e-6


def test_tables_grow_and_keep_their_values() -> None:
    tables = RotaryTables(SPEC)
    short = tables(10, CPU)
    long = tables(LENGTH, CPU)
    again = tables(10, CPU)
    for a, b, c in zip(short, long, again, strict=True):
        assert a.shape == (10, 32)
        assert b.shape == (LENGTH, 32)
        assert torch.equal(a, b[:10])
        assert torch.equal(a, c)


def scaled(**values: object) -> tuple[torch.Tensor, float]:
    return inverse_frequencies(replace(SPEC, rope_scaling=RopeScaling(**values)))


def test_linear() -> None:
    frequencies, factor = scaled(type="linear", factor=4.0, original_max_position_embeddings=64)
    assert torch.equal(frequencies * 4, inverse_frequencies(SPEC)[0])
    assert factor == 1.0


def test_llama3_bands() -> None:
    original = inverse_frequencies(SPEC)[0]
    frequencies, factor = scaled(type="llama3", factor=8.0, original_max_position_embeddings=8192)
    turns = 8192 * original / (2 * math.pi)
    high, low = turns > 4, turns < 1
    between = ~high & ~low
    assert high.any()
    assert low.any()
    assert between.any()
    assert torch.equal(frequencies[high], original[high])
    assert torch.allclose(frequencies[low], original[low] / 8)
    blend = (turns - 1) / 3
    expected = (1 - blend) * original / 8 + blend * original
    assert torch.allclose(frequencies[between], expected[between])
    assert factor == 1.0


def test_yarn_keeps_fast_turns_and_stretches_slow_ones() -> None:
    original = inverse_frequencies(SPEC)[0]
    frequencies, factor = scaled(type="yarn", factor=4.0, original_max_position_embeddings=4096)
    turns = 4096 * original / (2 * math.pi)
    ratio = frequencies / original
    assert torch.equal(frequencies[turns > 64], original[turns > 64])
    assert torch.allclose(ratio[turns < 0.4], torch.tensor(0.25))
    assert (ratio.diff() <= 1e-6).all()
    assert factor == pytest.approx(0.1 * math.log(4.0) + 1.0)


@pytest.mark.parametrize(("given", "factor", "expected"), [(0.7, 4.0, 0.7), (None, 1.0, 1.0)])
def test_yarn_temperature(given: float | None, factor: float, expected: float) -> None:
    values = {"type": "yarn", "factor": factor, "original_max_position_embeddings": 4096}
    assert scaled(attention_factor=given, **values)[1] == expected
