"""Reading and writing Hugging Face config.json, in the key styles of transformers 4 and 5."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.spec.huggingface import read_model_spec, to_config_json
from meshwright.spec.model import ModelSpec, RopeScaling
from meshwright.spec.presets import PRESETS, preset

LLAMA31 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 503,
    "sliding_window": 32,
    "max_window_layers": 2,
}


def read(tmp_path: Path, values: dict[str, Any]) -> ModelSpec:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return read_model_spec(path)


def test_llama31_in_both_key_styles(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA31) == preset("llama3.1-8b")
    new = {key: value for key, value in LLAMA31.items() if not key.startswith("rope")}
    new["rope_parameters"] = {"rope_theta": 500000.0, **LLAMA31["rope_scaling"]}  # type: ignore[dict-item]
    assert read(tmp_path, new) == preset("llama3.1-8b")


def test_directory_is_as_good_as_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA31) == read_model_spec(tmp_path)


def test_published_qwen_and_mistral_configs(tmp_path: Path) -> None:
    qwen = {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }
    assert read(tmp_path, qwen) == preset("qwen3-0.6b")
    mistral = {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "vocab_size": 32000,
    }
    assert read(tmp_path, mistral) == preset("mistral-7b-v0.1")
    assert read(tmp_path, mistral | {"sliding_window": None}).sliding_window is None


def test_absent_keys_have_their_family_defaults(tmp_path: Path) -> None:
    sizes = {key: QWEN2[key] for key in QWEN2 if key.startswith(("hidden", "inter", "num", "vocab"))}
    del sizes["num_key_value_heads"]
    llama = read(tmp_path, sizes | {"model_type": "llama"})
    assert (llama.num_kv_heads, llama.head_dim, llama.norm_eps) == (8, 8, 1e-6)
    assert (llama.rope_theta, llama.max_position_embeddings) == (10000.0, 2048)
    assert read(tmp_path, sizes | {"model_type": "qwen3"}).head_dim == 128
    mistral = read(tmp_path, sizes | {"model_type": "mistral"})
    assert (mistral.num_kv_heads, mistral.sliding_window) == (8, 4096)


def test_windows_of_qwen(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN2).sliding_window is None
    windowed = QWEN2 | {"use_sliding_window": True}
    assert read(tmp_path, windowed).sliding_window_layers == (2, 3)
    assert read(tmp_path, windowed | {"max_window_layers": 0}).sliding_window_layers is None
    assert read(tmp_path, windowed | {"max_window_layers": 4}).sliding_window is None
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    spec = read(tmp_path, windowed | {"layer_types": kinds})
    assert spec.sliding_window_layers == (0, 3)
    assert spec.sliding_window == 32


def test_biases_by_family(tmp_path: Path) -> None:
    qwen = read(tmp_path, QWEN2)
    assert (qwen.attention_bias, qwen.attention_output_bias) == (True, False)
    llama = read(tmp_path, LLAMA31 | {"attention_bias": True, "mlp_bias": True})
    assert (llama.attention_bias, llama.attention_output_bias, llama.mlp_bias) == (True, True, True)


def test_yarn_and_linear(tmp_path: Path) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert read(tmp_path, QWEN2 | {"rope_scaling": yarn}).rope_scaling == RopeScaling(
        type="yarn", factor=4.0, original_max_position_embeddings=32768
    )
    tuned = {"rope_type": "yarn", "factor": 2, "beta_fast": 16, "beta_slow": 2.0, "attention_factor": 1.1}
    assert read(tmp_path, QWEN2 | {"rope_scaling": tuned}).rope_scaling == RopeScaling(
        type="yarn",
        factor=2.0,
        original_max_position_embeddings=32768,
        beta_fast=16.0,
        beta_slow=2.0,
        attention_factor=1.1,
    )
    linear = read(tmp_path, QWEN2 | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert linear.rope_scaling is not None
    assert (linear.rope_scaling.type, linear.rope_scaling.factor) == ("linear", 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, r"config.json: model_type: 'gemma2' .*legal: llama, mistral, qwen2, qwen3"),
        ({"model_type": None}, "model_type: None"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' .*legal: 'silu'"),
        ({"num_experts": 8}, "num_experts: 8"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 .*legal: 1.0"),
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, "rope_scaling.rope_type: 'longrope'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 0.7}}, "rope_scaling.mscale: 0.7"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor: is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "original_max_position_embeddings: is missing"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention"),
        ({"rope_scaling": "yarn"}, "rope_scaling: 'yarn' is no object"),
        ({"vocab_size": None}, "vocab_size: is missing"),
        ({"hidden_size": "64"}, "hidden_size: '64' is no size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0 is no size; legal: 1 or more"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps: 'tiny' is no number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: 'yes' is no truth value"),
        ({"use_sliding_window": True, "layer_types": ["chunked_attention"] * 4}, "layer_types"),
        ({"use_sliding_window": True, "layer_types": 4}, "layer_types: 4"),
        ({"use_sliding_window": True, "layer_types": ["full_attention"]}, "legal: 4 entries"),
    ],
)
def test_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, QWEN2 | change)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing.json: cannot be read: No such file"):
        read_model_spec(tmp_path / "missing.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json: is no JSON"):
        read_model_spec(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no JSON object"):
        read_model_spec(tmp_path)


LINEAR = RopeScaling(type="linear", factor=2.0, original_max_position_embeddings=1024)
YARN = RopeScaling(type="yarn", factor=4.0, original_max_position_embeddings=256, attention_factor=1.2)
VARIANTS = PRESETS | {
    "linear": replace(preset("llama-2m"), rope_scaling=LINEAR),
    "yarn": replace(preset("llama-2m"), rope_scaling=YARN),
    "biases": replace(preset("llama-2m"), attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "window": replace(preset("qwen2.5-0.5b"), sliding_window=64, sliding_window_layers=(1, 5)),
    "qwen3 window": replace(preset("qwen3-0.6b"), sliding_window=64),
    "dropout": replace(preset("llama-2m"), attention_dropout=0.1, init_std=0.01),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_written_config_reads_back_the_same(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, to_config_json(VARIANTS[name])) == VARIANTS[name]


def test_b04_export_says_the_real_vocabulary() -> None:
    assert to_config_json(preset("llama-124m"))["vocab_size"] == 50257


@pytest.mark.parametrize(
    "change",
    [
        {"qk_norm": True, "mlp_bias": True},
        {"qk_norm": True, "attention_bias": True},
        {"attention_output_bias": True},
        {"sliding_window": 8, "mlp_bias": True},
        {"sliding_window": 8, "sliding_window_layers": (0,)},
        {"attention_bias": True, "mlp_bias": True},
    ],
)
def test_features_that_no_family_has(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no Hugging Face family has"):
        to_config_json(replace(preset("llama-2m"), **change))
