"""What autograd saves in one transformer layer of the Megatron family, tensor by tensor.

Sources: Megatron-LM ``core/transformer/{transformer_layer,attention,mlp,multi_latent_attention}.py`` and
``core/transformer/moe`` over Transformer Engine's ``LayerNormLinear``, ``Linear``, ``GroupedLinear`` and
``DotProductAttention``; nanotron ``models/llama.py`` and ``parallel/tensor_parallel/functional.py``. The sum for a GPT
layer is the 34 bytes x tokens x hidden + 5 bytes x heads x tokens x sequence of arXiv:2205.05198, equation 2.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from meshwright.plan.engines import EngineName
from meshwright.plan.network import Experts, LatentAttention, Network

Over = Literal["tensor", "sequence", "routed", "gathered"]
"""What a saved tensor is split over: the tensor ranks; the tensor ranks where the sequence is sharded between them;
or it exists once for each expert that a token visits, or for the tokens of all expert ranks."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """What decides which tensors are saved.

    Attributes:
        tensor / sequence: ways a "tensor" and a "sequence" entry is split.
        routed: experts' tokens on this rank per token of the micro-batch.
        expert_tensor: ways each expert is split.
        scores: tokens that each query has scores of, where scores are kept; 0 with flash attention.
        context: the sequence is sharded over context ranks, too.
        again: modules that are recomputed in backward, by Megatron-LM's names.
        gathered: tokens of all expert ranks on this rank per token of the micro-batch, where they are gathered.
        fused_permutation: one kernel orders tokens by expert, and one combines the results.
    """

    engine: EngineName
    tensor: int
    sequence: int
    routed: float
    expert_tensor: int
    scores: int
    context: bool
    again: tuple[str, ...]
    gathered: float = 0.0
    fused_permutation: bool = True


@dataclass(frozen=True)
class Saved:
    """One saved tensor: bytes per token before the split, and the module whose recomputation frees it."""

    name: str
    bytes: float
    over: Over
    module: str = ""


@lru_cache(maxsize=4096)
def layer_bytes(network: Network, style: Style, *, sparse: bool) -> float:
    """Bytes per token that one layer saves on one rank."""
    ways = {
        "tensor": 1 / style.tensor,
        "sequence": 1 / style.sequence,
        "routed": style.routed,
        "gathered": style.gathered,
    }
    kept = (entry for entry in layer_saves(network, style, sparse=sparse) if entry.module not in style.again)
    return sum(entry.bytes * ways[entry.over] for entry in kept)


def layer_saves(network: Network, style: Style, *, sparse: bool) -> tuple[Saved, ...]:
    """Every tensor that one layer saves."""
    attention = _latent(network, network.latent) if network.latent else _attention(network, style)
    inner = _experts(network, network.experts, style) if sparse and network.experts else _mlp(network, style)
    return (*_norms(network, sparse), *attention, *_core(network, style), *inner)


def _norms(network: Network, sparse: bool) -> Iterator[Saved]:
    """Inputs and outputs of both norms and the masks of the dropout behind attention and feed-forward network."""
    hidden, statistics = network.hidden_size, 8 if network.norm == "layernorm" else 4
    for place in ("attention", "feed-forward"):
        apart = (place == "feed-forward" and sparse) or (place == "attention" and network.latent is not None)
        yield Saved(f"input of the {place} norm", 2 * hidden + statistics, "sequence")
        yield Saved(f"output of the {place} norm", 2 * hidden, "sequence", "layernorm" if apart else "")
        if network.dropout:
            yield Saved(f"dropout mask behind {place}", hidden, "sequence")


def _attention(network: Network, style: Style) -> Iterator[Saved]:
    query, key = network.query_width, network.kv_width
    yield Saved("queries, keys and values", 2 * query + 4 * key, "tensor")
    if network.qk_norm:
        yield Saved("queries and keys before their norm", 2 * query + 2 * key, "tensor")
    if style.context:
        # Transformer Engine's ring attention keeps its output in the order of its steps, too.
        yield Saved("attention output by ring step", 2 * query, "tensor")


def _latent(network: Network, latent: LatentAttention) -> Iterator[Saved]:
    """Multi-head latent attention: norms of the compressed projections, and expanded heads."""
    heads, rope = network.num_heads, latent.rope_head_dim
    query, value = heads * (latent.nope_head_dim + rope), heads * latent.value_head_dim
    compressed = latent.key_value_rank + (latent.query_rank or 0)
    yield Saved("compressed projections and their norms", 4 * compressed + 2 * rope, "sequence")
    yield Saved("queries and keys", 4 * query, "tensor", "mla_up_proj")
    yield Saved("values", 2 * value, "tensor", "mla_up_proj")


def _core(network: Network, style: Style) -> Iterator[Saved]:
    value = network.num_heads * network.latent.value_head_dim if network.latent else network.query_width
    yield Saved("attention output", 2 * value, "tensor")
    if not style.scores:
        yield Saved("log-sum of attention weights", 4 * network.num_heads, "tensor", "core_attn")
        return
    scores = network.num_heads * style.scores
    yield Saved("attention weights", 2 * scores, "tensor", "core_attn")
    if network.dropout:
        yield Saved("dropped attention weights and their mask", 3 * scores, "tensor", "core_attn")


def _mlp(network: Network, style: Style) -> Iterator[Saved]:
    inner = network.intermediate_size
    yield Saved("first product", (4 if network.gated else 2) * inner, "tensor", "mlp")
    if style.engine in ("nanotron", "deepspeed") and network.gated:
        # silu(gate) * up runs as two operators.
        yield Saved("activated gate", 2 * inner, "tensor", "mlp")
    yield Saved("activation", 2 * inner, "tensor", "mlp")


def _experts(network: Network, experts: Experts, style: Style) -> Iterator[Saved]:
    """Router scores in fp32, tokens in the order of the experts, and the experts' own tensors."""
    width, shared = experts.intermediate_size / style.expert_tensor, experts.shared_intermediate_size
    first = 4 if network.gated else 2
    yield Saved("router logits, probabilities and maps", 16 * experts.num_experts, "sequence", "moe")
    yield Saved("tokens by expert", 2 * network.hidden_size, "routed", "moe")
    if style.gathered:
        yield Saved("tokens of all expert ranks", 2 * network.hidden_size, "gathered", "moe")
    if not style.fused_permutation:
        # The product with the router's probabilities is an operator of its own.
        yield Saved("results by expert", 2 * network.hidden_size, "routed", "moe")
    yield Saved("first product of the experts", first * width, "routed", "moe")
    yield Saved("activation of the experts", 2 * width, "routed", "moe_act" if "moe" not in style.again else "moe")
    if shared:
        yield Saved("first product of the shared experts", first * shared, "tensor", "moe")
        yield Saved("activation of the shared experts", 2 * shared, "tensor", "moe")
