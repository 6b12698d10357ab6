"""What the parameters of each model family are called by Hugging Face transformers: one table, both directions.

A table pairs modules; ``weight`` and ``bias`` are called the same on both sides. ``{}`` is the number of the layer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LLAMA = {
    "embedding": "model.embed_tokens",
    "layers.{}.attention_norm": "model.layers.{}.input_layernorm",
    "layers.{}.attention.q_proj": "model.layers.{}.self_attn.q_proj",
    "layers.{}.attention.k_proj": "model.layers.{}.self_attn.k_proj",
    "layers.{}.attention.v_proj": "model.layers.{}.self_attn.v_proj",
    "layers.{}.attention.o_proj": "model.layers.{}.self_attn.o_proj",
    "layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
    "layers.{}.mlp.gate_proj": "model.layers.{}.mlp.gate_proj",
    "layers.{}.mlp.up_proj": "model.layers.{}.mlp.up_proj",
    "layers.{}.mlp.down_proj": "model.layers.{}.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
_QWEN3 = _LLAMA | {
    "layers.{}.attention.q_norm": "model.layers.{}.self_attn.q_norm",
    "layers.{}.attention.k_norm": "model.layers.{}.self_attn.k_norm",
}
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class NameMap:
    """Names of parameters here and there.

    Attributes:
        modules: from a module's name here to its name there, ``{}`` for the layer's number.
    """

    modules: Mapping[str, str]

    def theirs(self, ours: str) -> str:
        """The name there of a parameter of ours. Raises KeyError where the table lacks it."""
        return _translated(ours, self.modules)

    def ours(self, theirs: str) -> str | None:
        """The name here of a parameter of theirs; None where the table does not know it."""
        try:
            return _translated(theirs, {there: here for here, there in self.modules.items()})
        except KeyError:
            return None


FAMILIES = {
    "llama": NameMap(_LLAMA),
    "mistral": NameMap(_LLAMA),
    "qwen2": NameMap(_LLAMA),
    "qwen3": NameMap(_QWEN3),
}
"""By ``model_type`` of a config.json."""


def derived_buffer(theirs: str) -> bool:
    """Whether a tensor of an old Hugging Face checkpoint is computed from the config and so needs no place here."""
    return theirs.endswith(".rotary_emb.inv_freq")


def _translated(name: str, modules: Mapping[str, str]) -> str:
    module, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        raise KeyError(name)
    number = _LAYER.search(module)
    pattern = _LAYER.sub("{}", module, count=1)
    if pattern not in modules:
        raise KeyError(name)
    found = modules[pattern]
    return f"{found.format(number[0]) if number else found}.{kind}"
