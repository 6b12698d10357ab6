"""Parameters on one rank, as Megatron Core cuts them over tensor, expert and pipeline ranks."""

from dataclasses import dataclass
from functools import lru_cache

from meshwright.plan.job import Adapter
from meshwright.plan.network import Experts, LatentAttention, Network


@dataclass(frozen=True, kw_only=True)
class Split:
    """How the weights of a layer are cut.

    Attributes:
        tensor: ways dense weights are split.
        expert: ways the experts are dealt out.
        expert_tensor: ways each expert is split.
    """

    tensor: int
    expert: int
    expert_tensor: int


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Parameters on one rank.

    Attributes:
        dense: those that all data x context ranks of the stage hold.
        expert: those of the rank's own experts.
    """

    dense: float
    expert: float = 0.0

    @property
    def total(self) -> float:
        """Both kinds together."""
        return self.dense + self.expert


@lru_cache(maxsize=4096)
def layer_weights(network: Network, split: Split, *, sparse: bool) -> Weights:
    """Parameters of one layer; ``sparse`` layers have experts."""
    norms = 2 * _norm(network)
    if not (sparse and network.experts):
        return Weights(dense=norms + _attention(network, split.tensor) + _mlp(network, split.tensor))
    experts = network.experts
    router = network.hidden_size * experts.num_experts
    shared = _matrices(network) * network.hidden_size * experts.shared_intermediate_size / split.tensor
    return Weights(
        dense=norms + _attention(network, split.tensor) + router + shared,
        expert=_routed(network, experts) / (split.expert * split.expert_tensor),
    )


def embedding_weights(network: Network, rows: float, tensor: int) -> float:
    """Parameters of the embedding of ``rows`` padded rows; learned positions lie whole on every tensor rank."""
    positions = network.max_position_embeddings if network.position == "learned" else 0
    return (rows / tensor + positions) * network.hidden_size


def head_weights(network: Network, rows: float, tensor: int) -> float:
    """Parameters of the output matrix and the norm before it."""
    return rows / tensor * network.hidden_size + _norm(network)


@lru_cache(maxsize=1024)
def adapter_weights(network: Network, adapter: Adapter, tensor: int) -> float:
    """Parameters of one layer's low-rank adapters: rank x (inputs + outputs) of each target, one side split."""
    hidden, query, key, inner = network.hidden_size, network.query_width, network.kv_width, network.intermediate_size
    sizes = [(hidden, query), (hidden, key)]
    if adapter.targets != "qv":
        sizes += [(hidden, key), (query, hidden)]
    if adapter.targets == "all":
        sizes += [(hidden, inner)] * (_matrices(network) - 1) + [(inner, hidden)]
    return sum(adapter.rank * (wide + narrow) for wide, narrow in sizes) / tensor


def _norm(network: Network) -> int:
    return network.hidden_size * (2 if network.norm == "layernorm" else 1)


def _matrices(network: Network) -> int:
    return 3 if network.gated else 2


def _routed(network: Network, experts: Experts) -> float:
    return _matrices(network) * network.hidden_size * experts.intermediate_size * experts.num_experts


def _mlp(network: Network, tensor: int) -> float:
    hidden, inner = network.hidden_size, network.intermediate_size
    bias = inner * (_matrices(network) - 1) / tensor + hidden if network.bias else 0
    return _matrices(network) * hidden * inner / tensor + bias


def _attention(network: Network, tensor: int) -> float:
    if network.latent:
        return _latent(network, network.latent, tensor)
    hidden, projected = network.hidden_size, network.query_width + 2 * network.kv_width
    weights = (projected + network.query_width) * hidden / tensor
    if network.bias or network.qkv_bias:
        weights += projected / tensor
    if network.bias:
        weights += hidden
    return weights + (2 * network.head_dim if network.qk_norm else 0)


def _latent(network: Network, latent: LatentAttention, tensor: int) -> float:
    """Down projections and their norms lie whole on every tensor rank (``multi_latent_attention.py``)."""
    hidden, heads = network.hidden_size, network.num_heads / tensor
    query_out = heads * (latent.nope_head_dim + latent.rope_head_dim)
    if latent.query_rank is None:
        query = hidden * query_out
    else:
        query = latent.query_rank * (hidden + 1 + query_out)
    down = hidden * (latent.key_value_rank + latent.rope_head_dim) + latent.key_value_rank
    up = latent.key_value_rank * heads * (latent.nope_head_dim + latent.value_head_dim)
    return query + down + up + heads * latent.value_head_dim * hidden
