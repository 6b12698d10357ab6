"""Exact parameter counts against published ones."""

from dataclasses import replace

import pytest

from meshwright.spec.parameters import (
    layer_parameters,
    module_counts,
    non_embedding,
    parameter_counts,
    parameter_shapes,
    total,
)
from meshwright.spec.presets import PRESETS, preset

PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size(name: str) -> None:
    assert total(preset(name)) == PUBLISHED[name]


def test_every_public_preset_is_held_against_its_published_size() -> None:
    assert set(PRESETS) - set(PUBLISHED) == {"llama-2m", "llama-124m"}


def test_own_presets() -> None:
    assert total(preset("llama-124m")) == 123_551_232
    assert total(preset("llama-2m")) == 2_410_176


def test_non_embedding_figures_of_the_model_cards() -> None:
    assert round(non_embedding(preset("qwen2.5-0.5b")) / 1e9, 2) == 0.36
    assert round(non_embedding(preset("qwen2.5-7b")) / 1e9, 2) == 6.53
    assert round(non_embedding(preset("qwen3-0.6b")) / 1e9, 2) == 0.44


def test_padding_adds_rows_to_embedding_and_head_only() -> None:
    spec = replace(preset("llama-2m"), vocab_size=2000)
    difference = total(spec, padded=True) - total(spec)
    assert difference == 2 * 48 * spec.hidden_size
    tied = replace(spec, tie_word_embeddings=True)
    assert total(tied, padded=True) - total(tied) == 48 * spec.hidden_size


def test_b04_padded_rows_depend_on_the_multiple_only() -> None:
    assert preset("llama-124m").padded_vocab_size == 50304
    assert preset("qwen3-8b").padded_vocab_size == 151936
    assert replace(preset("qwen3-8b"), vocab_pad_multiple=1).padded_vocab_size == 151936
    assert parameter_shapes(preset("llama-124m"), padded=True)["embedding.weight"] == (50304, 768)


def test_names_follow_the_switches() -> None:
    spec = replace(
        preset("llama-2m"), num_layers=1, attention_bias=True, attention_output_bias=True, mlp_bias=True, qk_norm=True
    )
    shapes = parameter_shapes(spec)
    assert shapes["layers.0.attention.k_proj.bias"] == (96,)
    assert shapes["layers.0.attention.o_proj.bias"] == (192,)
    assert shapes["layers.0.attention.q_norm.weight"] == (24,)
    assert shapes["layers.0.mlp.down_proj.weight"] == (192, 512)
    assert shapes["layers.0.mlp.down_proj.bias"] == (192,)
    assert len(shapes) == 3 + 2 + 4 * 2 + 2 + 3 * 2
    tied = parameter_shapes(replace(spec, tie_word_embeddings=True))
    assert set(shapes) - set(tied) == {"head.weight"}


@pytest.mark.parametrize("name", PRESETS)
def test_modules_and_layers_sum_to_the_model(name: str) -> None:
    spec = preset(name)
    modules = module_counts(spec)
    assert sum(modules.values()) == total(spec) == sum(parameter_counts(spec).values())
    assert modules["attention"] + modules["mlp"] + modules["norm"] == non_embedding(spec)
    assert non_embedding(spec) == layer_parameters(spec) * spec.num_layers + spec.hidden_size


def test_unknown_preset_offers_near_names() -> None:
    with pytest.raises(ValueError, match=r"did you mean.*llama3-8b"):
        preset("llama_3-8b")
    with pytest.raises(ValueError, match="known presets: llama-2m"):
        preset("zzzzzz")
