"""ModelSpec from and to the config.json of Hugging Face transformers (llama, mistral, qwen2, qwen3)."""

from pathlib import Path
from typing import Any

from meshwright.spec.json_source import JsonSource
from meshwright.spec.model import ModelSpec, RopeScaling

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Features that change the arithmetic of the network, with the values at which they do nothing.
_MUST_BE = {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1.0,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "quantization_config": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "use_mrope": (False,),
}
_ROPE_KEYS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings"),
}
_LAYER_TYPES = ("full_attention", "sliding_attention")
_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}
_ORIGINAL = "original_max_position_embeddings"
_ROPE_MUST_BE = {"partial_rotary_factor": (1.0,), "truncate": (True,), "finetuned": (True, False)}


def read_model_spec(config_json: Path) -> ModelSpec:
    """The ModelSpec of a Hugging Face model.

    Reads both the keys of transformers 4 (``rope_theta``, ``rope_scaling``, ``use_sliding_window``) and those
    of 5 (``rope_parameters``, ``layer_types``); what is absent has the default of its family there.

    Args:
        config_json: the file, or the directory it lies in.

    Raises:
        ValueError: the file cannot be read, lacks a size, or asks for something the decoder cannot do; the
            message names file, key and what would be legal.
    """
    source = JsonSource.open(config_json)
    family = source.choice("model_type", tuple(ARCHITECTURES))
    source.must_be(_MUST_BE)
    heads, hidden = source.size("num_attention_heads"), source.size("hidden_size")
    positions = source.size("max_position_embeddings", _POSITIONS[family])
    theta, scaling = _rope(source, positions)
    window, window_layers = _window(source, family)
    bias = family == "qwen2" or (family != "mistral" and source.flag("attention_bias"))
    return ModelSpec(
        num_layers=source.size("num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=source.size("num_key_value_heads", 8 if family == "mistral" else heads),
        head_dim=source.size("head_dim", 128 if family == "qwen3" else hidden // heads),
        intermediate_size=source.size("intermediate_size"),
        vocab_size=source.size("vocab_size"),
        max_position_embeddings=positions,
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=source.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=source.flag("tie_word_embeddings"),
        qk_norm=family == "qwen3",
        attention_bias=bias,
        attention_output_bias=bias and family != "qwen2",
        mlp_bias=family == "llama" and source.flag("mlp_bias"),
        sliding_window=window,
        sliding_window_layers=window_layers,
        attention_dropout=source.number("attention_dropout", 0.0),
        init_std=source.number("initializer_range", 0.02),
    )


def read_family(config_json: Path) -> str:
    """``model_type`` of a config.json, or of the one in a directory. Raises ValueError where it is not supported."""
    return JsonSource.open(config_json).choice("model_type", tuple(ARCHITECTURES))


def has_weights(folder: Path) -> bool:
    """Whether a model directory holds weights in any format, beside its config.json."""
    kinds = ("*.safetensors", "*.bin", "*.pth", "*.pt", "*.ckpt")
    return any(True for kind in kinds for _ in folder.glob(kind))


def to_config_json(spec: ModelSpec) -> dict[str, Any]:
    """The content of config.json for a model, in the keys that every transformers version since 4.43 reads.

    ``vocab_size`` is the real one: padding rows are never exported. ``hidden_dropout`` is a matter of training
    and has no key there.

    Raises:
        ValueError: no family of transformers has this combination of features.
    """
    family = family_of(spec)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": _rope_json(spec.rope_scaling),
        "tie_word_embeddings": spec.tie_word_embeddings,
        "attention_dropout": spec.attention_dropout,
        "initializer_range": spec.init_std,
        "use_cache": True,
    }
    if family in ("llama", "qwen3"):
        config["attention_bias"] = spec.attention_bias
    if family == "llama":
        config["mlp_bias"] = spec.mlp_bias
    return config | _window_json(spec, family)


def family_of(spec: ModelSpec) -> str:
    """The ``model_type`` whose network this is. Raises ValueError where no family has these features together."""
    all_windows = spec.sliding_window is not None and spec.sliding_window_layers is None
    both_biases = spec.attention_bias == spec.attention_output_bias
    no_bias = not (spec.attention_bias or spec.attention_output_bias or spec.mlp_bias)
    if spec.qk_norm and both_biases and not spec.mlp_bias:
        return "qwen3"
    if not spec.qk_norm and spec.attention_bias and not spec.attention_output_bias and not spec.mlp_bias:
        return "qwen2"
    if not spec.qk_norm and all_windows and no_bias:
        return "mistral"
    if not spec.qk_norm and spec.sliding_window is None and both_biases:
        return "llama"
    names = ("qk_norm", "attention_bias", "attention_output_bias", "mlp_bias", "sliding_window")
    features = ", ".join(f"{name} {getattr(spec, name)}" for name in names)
    raise ValueError(
        f"no Hugging Face family has {features} together; llama: equal attention biases, mlp_bias;"
        f" mistral: a window over all layers, no bias; qwen2: attention_bias alone, windows;"
        f" qwen3: qk_norm, equal attention biases, windows"
    )


def _rope(source: JsonSource, positions: int) -> tuple[float, RopeScaling | None]:
    key = "rope_parameters" if source.values.get("rope_parameters") else "rope_scaling"
    rope = source.inner(key)
    theta = rope.number("rope_theta", source.number("rope_theta", 10000.0))
    kind: Any = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind not in (legal := ("default", *_ROPE_KEYS)):
        raise rope.refusal("rope_type", f"{kind!r} is not supported", ", ".join(legal))
    keys = _ROPE_KEYS.get(kind, ())
    rope.must_be(_ROPE_MUST_BE)
    rope.only((*keys, *_ROPE_MUST_BE, "rope_type", "type", "rope_theta"))
    if kind == "default":
        return theta, None
    floats = [name for name in keys if name not in ("factor", _ORIGINAL) and rope.values.get(name) is not None]
    scaling = RopeScaling(
        type=kind,
        factor=rope.number("factor", None),
        original_max_position_embeddings=rope.size(_ORIGINAL, None if kind == "llama3" else positions),
        **{name: rope.number(name, None) for name in floats},
    )
    return theta, scaling


def _rope_json(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    values = {key: getattr(scaling, key) for key in _ROPE_KEYS[scaling.type]}
    return {"rope_type": scaling.type} | {key: value for key, value in values.items() if value is not None}


def _window(source: JsonSource, family: str) -> tuple[int | None, tuple[int, ...] | None]:
    if family == "llama":
        return None, None
    layers = source.size("num_hidden_layers")
    if family == "mistral":
        if source.values.get("sliding_window", 4096) is None:
            return None, None
        return source.size("sliding_window", 4096), None
    if not source.flag("use_sliding_window"):
        return None, None
    types = source.values.get("layer_types")
    if types is None:
        sliding = tuple(range(source.size("max_window_layers", 28, at_least=0), layers))
    elif not isinstance(types, list) or len(types) != layers or any(kind not in _LAYER_TYPES for kind in types):
        legal = f"{layers} entries of {' or '.join(_LAYER_TYPES)}"
        raise source.refusal("layer_types", f"{types!r} is not supported", legal)
    else:
        sliding = tuple(layer for layer, kind in enumerate(types) if kind == "sliding_attention")
    if not sliding:
        return None, None
    return source.size("sliding_window", 4096), None if len(sliding) == layers else sliding


def _window_json(spec: ModelSpec, family: str) -> dict[str, Any]:
    if family == "llama":
        return {}
    if family == "mistral":
        return {"sliding_window": spec.sliding_window}
    windowed = [spec.window_of_layer(layer) is not None for layer in range(spec.num_layers)]
    if not any(windowed):
        return {"use_sliding_window": False, "sliding_window": None}
    return {
        "use_sliding_window": True,
        "sliding_window": spec.sliding_window,
        "max_window_layers": windowed.index(True),
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windowed],
    }
