"""Parameter names and counts against transformers, on the meta device."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.spec.huggingface import read_model_spec, to_config_json
from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import parameter_shapes, total
from meshwright.spec.presets import preset

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TINY = preset("llama-2m")
SPECS = {
    "llama3.1-8b": preset("llama3.1-8b"),
    "llama3.2-1b": preset("llama3.2-1b"),
    "qwen2.5-0.5b": preset("qwen2.5-0.5b"),
    "qwen3-0.6b": preset("qwen3-0.6b"),
    "qwen3-14b": preset("qwen3-14b"),
    "mistral-7b-v0.1": preset("mistral-7b-v0.1"),
    "llama-2m": TINY,
    "llama with biases": replace(TINY, attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "qwen3 with biases": replace(TINY, attention_bias=True, attention_output_bias=True, qk_norm=True),
}
RENAMES = (
    ("model.embed_tokens.", "embedding."),
    ("lm_head.", "head."),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "mlp_norm"),
    ("self_attn.", "attention."),
    ("model.", ""),
)


def built(spec: ModelSpec, directory: Path) -> "torch.nn.Module":
    """The transformers model of a written config.json, without memory for its weights."""
    (directory / "config.json").write_text(json.dumps(to_config_json(spec)))
    config = transformers.AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def ours(name: str) -> str:
    for theirs, our in RENAMES:
        name = name.replace(theirs, our)
    return name


@pytest.mark.parametrize("name", SPECS)
def test_every_parameter_by_name_and_shape(name: str, tmp_path: Path) -> None:
    model = built(SPECS[name], tmp_path)
    shapes = {ours(key): tuple(value.shape) for key, value in model.named_parameters()}
    assert shapes == parameter_shapes(SPECS[name])
    assert sum(value.numel() for value in model.parameters()) == total(SPECS[name])


@pytest.mark.parametrize("name", SPECS)
def test_config_saved_by_transformers_reads_back(name: str, tmp_path: Path) -> None:
    config = built(SPECS[name], tmp_path).config
    saved = tmp_path / "saved"
    config.save_pretrained(saved)
    assert read_model_spec(saved) == SPECS[name]


@pytest.mark.parametrize(
    ("spec", "windows"),
    [
        (replace(preset("qwen2.5-0.5b"), sliding_window=64, sliding_window_layers=(2, 23)), {2, 23}),
        (replace(preset("qwen3-0.6b"), sliding_window=64), set(range(28))),
    ],
    ids=["qwen2", "qwen3"],
)
def test_windows_mean_the_same_layers(spec: ModelSpec, windows: set[int], tmp_path: Path) -> None:
    config = built(spec, tmp_path).config
    assert config.sliding_window == 64
    assert {i for i, kind in enumerate(config.layer_types) if kind == "sliding_attention"} == windows
