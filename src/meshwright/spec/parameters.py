"""Exact parameter shapes and counts, by the names the model gives them."""

import math
from collections.abc import Mapping

from meshwright.spec.model import ModelSpec

EMBEDDING = "embedding.weight"
HEAD = "head.weight"
Shape = tuple[int, ...]


def parameter_shapes(spec: ModelSpec, *, padded: bool = False) -> dict[str, Shape]:
    """Shape of every parameter, in the order of the forward pass.

    Weights are [out, in]. A tied head has no entry: it is the embedding. ``padded`` counts the rows that fill
    the vocabulary up to ``vocab_pad_multiple``, as memory does; published sizes do not.
    """
    rows = spec.padded_vocab_size if padded else spec.vocab_size
    shapes: dict[str, Shape] = {EMBEDDING: (rows, spec.hidden_size)}
    layer = layer_shapes(spec)
    for index in range(spec.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["norm.weight"] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes[HEAD] = (rows, spec.hidden_size)
    return shapes


def layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Parameter shapes of one layer, named without the ``layers.{i}.`` in front. All layers are alike."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key_value = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {"attention_norm.weight": (hidden,)}
    for name, rows in (("q", query), ("k", key_value), ("v", key_value)):
        shapes |= _linear(f"attention.{name}_proj", rows, hidden, bias=spec.attention_bias)
    shapes |= _linear("attention.o_proj", hidden, query, bias=spec.attention_output_bias)
    if spec.qk_norm:
        shapes["attention.q_norm.weight"] = (spec.head_dim,)
        shapes["attention.k_norm.weight"] = (spec.head_dim,)
    shapes["mlp_norm.weight"] = (hidden,)
    for name in ("gate", "up"):
        shapes |= _linear(f"mlp.{name}_proj", inner, hidden, bias=spec.mlp_bias)
    return shapes | _linear("mlp.down_proj", hidden, inner, bias=spec.mlp_bias)


def parameter_counts(spec: ModelSpec, *, padded: bool = False) -> dict[str, int]:
    """Number of elements of every parameter by name; see `parameter_shapes`."""
    return {name: math.prod(shape) for name, shape in parameter_shapes(spec, padded=padded).items()}


def total(spec: ModelSpec, *, padded: bool = False) -> int:
    """Parameters in all, a tied matrix counted once; equals the published size when not padded."""
    return sum(parameter_counts(spec, padded=padded).values())


def non_embedding(spec: ModelSpec) -> int:
    """Parameters without embedding and head matrices, the "non-embedding" figure of model cards."""
    return sum(count for name, count in parameter_counts(spec).items() if name not in (EMBEDDING, HEAD))


def layer_parameters(spec: ModelSpec) -> int:
    """Parameters of one layer."""
    return sum(math.prod(shape) for shape in layer_shapes(spec).values())


def module_counts(spec: ModelSpec, *, padded: bool = False) -> dict[str, int]:
    """Parameters by kind of module over all layers: embedding, attention, mlp, norm, head (0 when tied)."""
    counts = dict.fromkeys(("embedding", "attention", "mlp", "norm", "head"), 0)
    for name, count in parameter_counts(spec, padded=padded).items():
        counts[_module(name)] += count
    return counts


def stage_of(name: str, stages: tuple[tuple[int, ...], ...]) -> int:
    """Pipeline stage that owns a parameter under a layer map.

    The embedding belongs to the first stage, also where it is tied and the last stage keeps a copy as head:
    one parameter has one owner.
    """
    if name == EMBEDDING:
        return 0
    if not name.startswith("layers."):
        return len(stages) - 1
    layer = int(name.split(".")[1])
    return next(stage for stage, layers in enumerate(stages) if layer in layers)


def stage_counts(counts: Mapping[str, int], stages: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Parameters that each stage owns; they sum to the model's."""
    sums = [0] * len(stages)
    for name, count in counts.items():
        sums[stage_of(name, stages)] += count
    return tuple(sums)


def _module(name: str) -> str:
    if name in (EMBEDDING, HEAD):
        return name.removesuffix(".weight")
    if "norm" in name:
        return "norm"
    return "attention" if ".attention." in name else "mlp"


def _linear(name: str, rows: int, columns: int, *, bias: bool) -> dict[str, Shape]:
    weight: dict[str, Shape] = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if bias else weight
