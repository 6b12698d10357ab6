"""What MindFormers calls the parameters of the Llama and Qwen families, and how it lays out those it fuses.

A table pairs modules, ``{}`` being the number of the layer; ``weight`` and ``bias`` are called the same on both sides
unless the name is written whole. Sources: ``convert_name`` of models/llama/llama.py, ``weight_mapping`` of
models/qwen3/utils.py and research/qwen2_5 in mindformers 1.x and 2.1.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

FusedLayout = Literal["stacked", "interleaved", "grouped"]


@dataclass(frozen=True)
class Fused:
    """Several of our parameters in one of theirs, along the rows.

    Attributes:
        parts: our modules.
        layout: ``stacked``, one after the other; ``interleaved``, a row of each in turn; ``grouped``, the query heads
            of one key/value head, its key and its value, then the next (Megatron's order).
    """

    parts: tuple[str, ...]
    layout: FusedLayout


Target = str | Fused

LEGACY: dict[str, Target] = {
    "model.tok_embeddings.embedding_weight": "embedding.weight",
    "model.tok_embeddings.embedding_table": "embedding.weight",
    "model.layers.{}.attention_norm": "layers.{}.attention_norm",
    "model.layers.{}.attention.wq": "layers.{}.attention.q_proj",
    "model.layers.{}.attention.wk": "layers.{}.attention.k_proj",
    "model.layers.{}.attention.wv": "layers.{}.attention.v_proj",
    "model.layers.{}.attention.wo": "layers.{}.attention.o_proj",
    "model.layers.{}.ffn_norm": "layers.{}.mlp_norm",
    "model.layers.{}.feed_forward.w1": "layers.{}.mlp.gate_proj",
    "model.layers.{}.feed_forward.w2": "layers.{}.mlp.down_proj",
    "model.layers.{}.feed_forward.w3": "layers.{}.mlp.up_proj",
    "model.norm_out": "norm",
    "lm_head": "head",
}
_QKV = tuple(f"layers.{{}}.attention.{part}_proj" for part in "qkv")
_GATE_UP = ("layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj")
MCORE: dict[str, Target] = {
    "embedding.word_embeddings": "embedding",
    "decoder.layers.{}.input_layernorm": "layers.{}.attention_norm",
    "decoder.layers.{}.self_attention.linear_qkv": Fused(_QKV, "grouped"),
    "decoder.layers.{}.self_attention.linear_q": "layers.{}.attention.q_proj",
    "decoder.layers.{}.self_attention.linear_k": "layers.{}.attention.k_proj",
    "decoder.layers.{}.self_attention.linear_v": "layers.{}.attention.v_proj",
    "decoder.layers.{}.self_attention.linear_proj": "layers.{}.attention.o_proj",
    "decoder.layers.{}.self_attention.q_layernorm": "layers.{}.attention.q_norm",
    "decoder.layers.{}.self_attention.k_layernorm": "layers.{}.attention.k_norm",
    "decoder.layers.{}.pre_mlp_layernorm": "layers.{}.mlp_norm",
    "decoder.layers.{}.mlp.linear_fc1": Fused(_GATE_UP, "interleaved"),
    "decoder.layers.{}.mlp.gating": "layers.{}.mlp.gate_proj",
    "decoder.layers.{}.mlp.hidden": "layers.{}.mlp.up_proj",
    "decoder.layers.{}.mlp.linear_fc2": "layers.{}.mlp.down_proj",
    "decoder.final_layernorm": "norm",
    "output_layer": "head",
}
NAMES: dict[str, Target] = LEGACY | MCORE
# What MindSpore saves beside the parameters: optimizer states by prefix, counters by name.
_STATES = ("adam_m.", "adam_v.", "moments.", "exp_avg.", "exp_avg_sq.", "accu_grads.", "master_weight.")
_COUNTERS = (
    "global_step",
    "scale_sense",
    "epoch_num",
    "step_num",
    "loss_scale",
    "global_batch_size",
    "learning_rate",
    "weight_decay",
    "beta1_power",
    "beta2_power",
    "current_iterator_step",
    "last_overflow_iterator_step",
)
_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Found:
    """Where one of our parameters is: under which name of theirs, and which part of it.

    Attributes:
        parts: names of ours that lie in it, in order; one where nothing is fused.
        part: which of these.
    """

    theirs: str
    parts: tuple[str, ...]
    part: int = 0
    layout: FusedLayout | None = None


def is_state(name: str) -> bool:
    """Whether a tensor is a state of an optimizer or a counter of a run, not a weight."""
    return name in _COUNTERS or name.startswith(_STATES)


def find_ours(theirs: str, table: Mapping[str, Target] = NAMES) -> dict[str, Found]:
    """Our parameters that ``theirs`` holds, by our names; empty where the table does not know it."""
    for name in dict.fromkeys((theirs, theirs.removeprefix("model."))):
        module, _, kind = name.rpartition(".")
        for known, suffix in ((name, ""), (module, f".{kind}")):
            number = _LAYER.search(known)
            target = table.get(_LAYER.sub("{}", known, count=1))
            if target is None or (suffix and kind not in ("weight", "bias")):
                continue
            layer = number[0] if number else ""
            parts = (target,) if isinstance(target, str) else target.parts
            layout = None if isinstance(target, str) else target.layout
            names = tuple(part.format(layer) + suffix for part in parts)
            return {name: Found(theirs, names, index, layout) for index, name in enumerate(names)}
    return {}


def part_of(fused: Tensor, found: Found, rows: Sequence[int], heads: tuple[int, int]) -> Tensor:
    """One parameter out of a fused tensor [rows, ...].

    Args:
        rows: of each of ``found.parts``.
        heads: number of query heads and of key/value heads.
    """
    rest = fused.shape[1:]
    if found.layout is None:
        return fused
    if found.layout == "stacked":
        return fused.split(list(rows))[found.part]
    if found.layout == "interleaved":
        return fused.reshape(-1, len(rows), *rest)[:, found.part]
    queries = heads[0] // heads[1]
    groups = fused.reshape(heads[1], queries + 2, -1, *rest)
    part = (groups[:, :queries], groups[:, queries : queries + 1], groups[:, queries + 1 :])[found.part]
    return part.reshape(-1, *rest)


def fuse(parts: Sequence[Tensor], layout: FusedLayout | None, heads: tuple[int, int]) -> Tensor:
    """What `part_of` takes apart, put together; a single part is returned as it is."""
    rest = parts[0].shape[1:]
    if layout is None:
        return parts[0]
    if layout == "stacked":
        return torch.cat(list(parts))
    if layout == "interleaved":
        return torch.stack(list(parts), dim=1).reshape(-1, *rest)
    return torch.cat([part.reshape(heads[1], -1, *rest) for part in parts], dim=1).reshape(-1, *rest)


def find_theirs(ours: Collection[str], num_layers: int, table: Mapping[str, Target]) -> dict[str, Found]:
    """By which names a table calls our parameters; the first name in the table that fits wins.

    Raises:
        KeyError: with a parameter that the table does not know.
    """
    places: dict[str, Found] = {}
    placed: set[str] = set()
    for theirs, target in table.items():
        parts = (target,) if isinstance(target, str) else target.parts
        layout = None if isinstance(target, str) else target.layout
        whole = parts[0] in ours
        for layer in range(num_layers if "{}" in theirs else 1):
            for suffix in ("",) if whole else (".weight", ".bias"):
                names = tuple(part.format(layer) + suffix for part in parts)
                if placed.isdisjoint(names) and all(name in ours for name in names):
                    places[theirs.format(layer) + suffix] = Found("", names, 0, layout)
                    placed.update(names)
    if missing := sorted(set(ours) - placed):
        raise KeyError(missing[0])
    return places


def read_table(values: object) -> dict[str, Target]:
    """A table as users write it: ``theirs: ours``, or ``theirs: {parts: [...], layout: stacked}``.

    Raises:
        ValueError: with the entry that is wrong.
    """
    if not isinstance(values, dict):
        raise ValueError("must be a table of theirs: ours")
    return {str(theirs): _target(str(theirs), target) for theirs, target in values.items()}


def _target(theirs: str, target: object) -> Target:
    if isinstance(target, str):
        return target
    legal = get_args(FusedLayout)
    if isinstance(target, dict) and set(target) == {"parts", "layout"} and target["layout"] in legal:
        parts: Iterable[object] = target["parts"] if isinstance(target["parts"], list) else ()
        if names := tuple(part for part in parts if isinstance(part, str)):
            return Fused(names, target["layout"])
    raise ValueError(
        f"{theirs}: {target!r} is no name; legal: a name, or {{parts: [names], layout: {'|'.join(legal)}}}"
    )
