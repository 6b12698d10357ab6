"""The ``model`` section as a ModelSpec: preset or config.json or nothing, then the given sizes on top."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from meshwright.config.errors import ConfigError, Origin
from meshwright.config.load import LoadedConfig
from meshwright.config.schema_model import ModelConfig, RopeScalingConfig
from meshwright.spec import presets
from meshwright.spec.huggingface import has_weights, read_model_spec
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec, RopeScaling
from meshwright.spec.training import TrainSpec

SIZES = tuple(field.name for field in fields(ModelSpec))
NEEDED = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "vocab_size")
# For these null is a value (no scaling, full attention), so an explicit null overrides a preset.
NULL_IS_A_VALUE = ("rope_scaling", "sliding_window", "sliding_window_layers")


def resolve_model(loaded: LoadedConfig, errors: list[ConfigError]) -> ModelSpec | None:
    """The network of a config, or None with the mistakes added to ``errors``."""
    model = loaded.config.model
    before = len(errors)
    base = _base(loaded, errors)
    if len(errors) > before:
        return None
    given = _given(model)
    if base is None:
        if missing := [name for name in NEEDED if name not in given]:
            message = f"no preset and no pretrained_model_dir, so {', '.join(missing)} must be given"
            errors.append(ConfigError.at(loaded.origin("model"), message, "model"))
            return None
        given.setdefault("num_kv_heads", given["num_heads"])
    hidden, heads = (given.get(name) or getattr(base, name) for name in ("hidden_size", "num_heads"))
    if "head_dim" not in given and _head_dim_follows(base, given):
        if hidden % heads:
            message = f"hidden_size {hidden} is not a multiple of num_heads {heads}"
            hint = "give model.head_dim, or a multiple"
            errors.append(ConfigError.at(loaded.origin("model.num_heads"), message, "model.num_heads", hint))
            return None
        given["head_dim"] = hidden // heads
    if base is None:
        return ModelSpec(**given)
    if "num_heads" in given and base.num_kv_heads == base.num_heads:
        given.setdefault("num_kv_heads", heads)
    return replace(base, **given)


def stand_in_model(layout: Layout, train: TrainSpec) -> ModelSpec:
    """A model that breaks no rule with a layout, so that the other rules are checked where the model is wrong."""
    degree, listed = layout.model_parallel, train.recompute.layers
    deepest = max(listed, default=0) + 1 if isinstance(listed, tuple) else 1
    return ModelSpec(
        num_layers=sum(layout.stage_layers) if layout.stage_layers else max(layout.pipeline_stage, deepest),
        hidden_size=2 * degree,
        num_heads=degree,
        num_kv_heads=degree,
        head_dim=2,
        intermediate_size=degree,
        vocab_size=degree,
        max_position_embeddings=train.seq_length,
        vocab_pad_multiple=degree,
    )


def base_origin(model: ModelConfig) -> Origin | None:
    """Where sizes come from that were not written down."""
    if model.preset:
        return Origin(f"preset {model.preset}")
    if model.pretrained_model_dir:
        return Origin(str(Path(model.pretrained_model_dir) / "config.json"))
    return None


def resolved_section(model: ModelConfig, spec: ModelSpec) -> dict[str, Any]:
    """The section with every size named. A directory without weights is left out: what it said is now written here."""
    section = model.model_dump() | {name: getattr(spec, name) for name in SIZES}
    if spec.rope_scaling is not None:
        scaling = spec.rope_scaling
        section["rope_scaling"] = {field.name: getattr(scaling, field.name) for field in fields(scaling)}
    directory = model.pretrained_model_dir
    return section | {"pretrained_model_dir": directory if directory and has_weights(Path(directory)) else None}


def _base(loaded: LoadedConfig, errors: list[ConfigError]) -> ModelSpec | None:
    model = loaded.config.model
    if model.preset and model.pretrained_model_dir:
        key = "model.pretrained_model_dir"
        message = f"preset {model.preset} is given as well"
        errors.append(ConfigError.at(loaded.origin(key), message, key, "keep one, set the other to null"))
        return None
    try:
        if model.preset:
            return presets.preset(model.preset)
        if model.pretrained_model_dir:
            return read_model_spec(Path(model.pretrained_model_dir) / "config.json")
    except (ValueError, OSError) as error:
        key = "model.preset" if model.preset else "model.pretrained_model_dir"
        errors.append(ConfigError.at(loaded.origin(key), str(error), key))
    return None


def _given(model: ModelConfig) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name in SIZES:
        value = getattr(model, name)
        if isinstance(value, RopeScalingConfig):
            value = RopeScaling(**value.model_dump())
        if value is not None or (name in NULL_IS_A_VALUE and name in model.model_fields_set):
            given[name] = value
    return given


def _head_dim_follows(base: ModelSpec | None, given: dict[str, Any]) -> bool:
    """Whether head_dim is the quotient, not a size of its own as in Qwen3."""
    if base is None:
        return True
    changed = "hidden_size" in given or "num_heads" in given
    return changed and base.head_dim * base.num_heads == base.hidden_size
