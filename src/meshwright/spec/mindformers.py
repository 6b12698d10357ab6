"""ModelSpec from the YAML of MindSpore Transformers (MindFormers): Llama and Qwen, dense."""

from pathlib import Path
from typing import Any

from meshwright.spec.json_source import JsonSource
from meshwright.spec.model import ModelSpec

# By our name: what MindFormers' configs call it (configuration_utils and COMMON_CONFIG_MAPPING of 2.1).
_ALIASES = {
    "num_layers": ("num_layers", "num_hidden_layers", "n_layers"),
    "hidden_size": ("hidden_size", "dim"),
    "num_heads": ("num_heads", "num_attention_heads", "n_heads"),
    "num_kv_heads": ("n_kv_heads", "num_key_value_heads", "num_query_groups"),
    "head_dim": ("head_dim", "kv_channels"),
    "vocab_size": ("vocab_size",),
    "positions": ("max_position_embeddings", "max_position_embedding", "seq_length"),
    "norm_eps": ("rms_norm_eps", "layernorm_epsilon", "norm_eps"),
    "rope_theta": ("theta", "rope_theta", "rotary_base"),
    "tied": ("tie_word_embeddings",),
    "bias": ("qkv_has_bias", "attention_bias", "add_qkv_bias"),
    "qk_norm": ("qk_layernorm", "use_qk_norm", "qk_norm"),
}
# What changes the network and is not read, with the values at which it does nothing.
_MUST_BE = {
    "extend_method": ("NONE", "None"),
    "scaling_factor": (1.0,),
    "rope_scaling": (),
    "num_experts": (0, 1),
    "n_routed_experts": (0, 1),
    "moe_config": (),
    "quant_config": (),
    "rotary_percent": (1.0,),
    "multi_latent_attention": (False,),
}


def is_mindformers(values: Any) -> bool:
    """Whether a YAML file's content is a config of MindFormers."""
    model = values.get("model") if isinstance(values, dict) else None
    return isinstance(model, dict) and isinstance(model.get("model_config"), dict)


def read_mindformers_spec(values: Any, path: Path, intermediate_size: int) -> ModelSpec:
    """The network that ``model.model_config`` describes.

    Args:
        values: content of a config for which `is_mindformers` holds.
        path: its file, for messages.
        intermediate_size: rows of the gate projection: the file's own keys only give it after rounding rules.

    Raises:
        ValueError: a size is missing, or something is asked for that the decoder cannot do; names file and key.
    """
    source = JsonSource(path, dict(values["model"]["model_config"]), "model.model_config.")
    source.must_be(_MUST_BE)
    heads, hidden = _size(source, "num_heads"), _size(source, "hidden_size")
    return ModelSpec(
        num_layers=_size(source, "num_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_size(source, "num_kv_heads", heads),
        head_dim=_size(source, "head_dim", hidden // heads),
        intermediate_size=intermediate_size,
        vocab_size=_size(source, "vocab_size"),
        max_position_embeddings=_size(source, "positions", 4096),
        rope_theta=source.number(_key(source, "rope_theta"), 10000.0),
        norm_eps=source.number(_key(source, "norm_eps"), 1e-5),
        tie_word_embeddings=source.flag(_key(source, "tied")),
        attention_bias=source.flag(_key(source, "bias")),
        qk_norm=source.flag(_key(source, "qk_norm")),
    )


def _key(source: JsonSource, name: str) -> str:
    """The alias that the file uses; the first one where it uses none."""
    return next((key for key in _ALIASES[name] if source.values.get(key) is not None), _ALIASES[name][0])


def _size(source: JsonSource, name: str, default: int | None = None) -> int:
    return source.size(_key(source, name), default)
