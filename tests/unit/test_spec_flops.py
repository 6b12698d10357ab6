"""FLOPs per token and utilisation (B-11)."""

from dataclasses import replace

import pytest

from meshwright.spec.flops import (
    attention_flops_per_token,
    describe_convention,
    flops_per_token,
    hardware_utilization,
    mfu,
    recompute_flops_per_token,
    utilization_warning,
)
from meshwright.spec.presets import preset
from meshwright.spec.training import Recompute

LLAMA3 = preset("llama3-8b")
SEQ = 8192


def test_b11_flops_per_token_in_both_conventions() -> None:
    assert flops_per_token(LLAMA3, SEQ, embedding=True) == 6 * 8_030_261_248 + 12 * 32 * 4096 * 8192
    assert flops_per_token(LLAMA3, SEQ, embedding=True) == pytest.approx(6.107e10, rel=1e-4)
    assert flops_per_token(LLAMA3, SEQ, embedding=False) == pytest.approx(5.791e10, rel=1e-4)


def test_b11_kv_heads_are_counted_as_they_are() -> None:
    wrong = replace(LLAMA3, num_kv_heads=32)
    assert flops_per_token(wrong, SEQ, embedding=True) == pytest.approx(6.590e10, rel=1e-4)


def test_b11_mfu_of_2904_tokens_per_second() -> None:
    with_embedding = mfu(2904, flops_per_token(LLAMA3, SEQ, embedding=True), 312e12)
    without = mfu(2904, flops_per_token(LLAMA3, SEQ, embedding=False), 312e12)
    assert round(100 * with_embedding, 1) == 56.8
    assert round(100 * without, 1) == 53.9
    assert mfu(8 * 2904, flops_per_token(LLAMA3, SEQ, embedding=True), 312e12, devices=8) == with_embedding


def test_b11_recompute_raises_hardware_utilisation_only() -> None:
    flops = flops_per_token(LLAMA3, SEQ, embedding=False)
    none = recompute_flops_per_token(LLAMA3, SEQ, Recompute())
    everything = recompute_flops_per_token(LLAMA3, SEQ, Recompute(layers="all"))
    some = recompute_flops_per_token(LLAMA3, SEQ, Recompute(layers=(0, 5)))
    assert none == 0
    assert some == pytest.approx(everything / 16)
    head = 6 * LLAMA3.vocab_size * LLAMA3.hidden_size
    assert everything == pytest.approx((flops - head) / 3, rel=1e-5)
    share = mfu(2904, flops, 312e12)
    assert hardware_utilization(2904, flops, none, 312e12) == share
    assert hardware_utilization(2904, flops, everything, 312e12) > share


def test_b11_more_than_the_peak_is_flagged() -> None:
    assert utilization_warning(1.0) is None
    warning = utilization_warning(mfu(29040, flops_per_token(LLAMA3, SEQ, embedding=True), 312e12))
    assert warning is not None
    assert "568.4%" in warning


def test_b11_convention_in_words() -> None:
    assert describe_convention(embedding=False, causal=True) == (
        "FLOPs per token = 6 x parameters without the input embedding"
        " + 12 x layers x heads x head_dim x seq_length / 2 (causal); recomputation not counted"
    )


def test_causal_halves_attention() -> None:
    full = attention_flops_per_token(LLAMA3, 0, SEQ)
    assert attention_flops_per_token(LLAMA3, 0, SEQ, causal=True) == full / 2


def test_sliding_window_bounds_the_keys() -> None:
    mistral = preset("mistral-7b-v0.1")
    per_key = 12 * 32 * 128
    assert attention_flops_per_token(mistral, 0, 16384) == per_key * 4096
    assert attention_flops_per_token(mistral, 0, 2048) == per_key * 2048
    # 4096 tokens see 2048 keys on average, the other 12288 see 4096.
    assert attention_flops_per_token(mistral, 0, 16384, causal=True) == per_key * (2048 + 3 * 4096) / 4


def test_tied_matrix_counts_once_as_the_head() -> None:
    tied = preset("llama3.2-1b")
    assert flops_per_token(tied, SEQ, embedding=True) == flops_per_token(tied, SEQ, embedding=False)


def test_heads_wider_than_the_hidden_size() -> None:
    qwen = preset("qwen3-0.6b")
    assert attention_flops_per_token(qwen, 0, 1000) == 12 * 16 * 128 * 1000
