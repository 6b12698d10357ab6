"""Weights of one pipeline stage by the groups in which FSDP gathers and reduces them."""

from dataclasses import dataclass
from functools import lru_cache

from meshwright.plan.network import Network


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Elements on one rank of the tensor group.

    Attributes:
        layer: one block.
        products: of them in matrices, which autocast copies.
        down: the down projection, the last of a block.
        embedding / head: padded vocabulary x hidden; ``head`` is 0 where it is tied.
        norm: the final norm.
        columns: columns of the logits.
    """

    layer: float
    products: float
    down: float
    embedding: float
    head: float
    norm: float
    columns: float


@lru_cache(maxsize=1024)
def weights_of(network: Network, tensor: int, expert: int = 1) -> Weights:
    """Weights of a network split over ``tensor`` ranks (norms are whole everywhere), experts over ``expert``."""
    hidden, query, key_value = network.hidden_size, network.query_width, network.kv_width
    attention = hidden * (2 * query + 2 * key_value)
    matrices = 3 if network.gated else 2
    dense = float(matrices * hidden * network.intermediate_size)
    if network.experts is not None:
        routed = network.experts.num_experts * network.experts.intermediate_size / expert
        dense = matrices * hidden * (routed + network.experts.shared_intermediate_size)
        dense += hidden * network.experts.num_experts * tensor
    biases = (query + 2 * key_value) * (network.qkv_bias or network.bias)
    biases += (hidden * 2 + network.intermediate_size * (matrices - 1)) * network.bias
    norms = 2 * hidden * (2 if network.norm == "layernorm" else 1) + 2 * network.head_dim * network.qk_norm
    rows = -(-network.vocab_size // network.vocab_pad_multiple) * network.vocab_pad_multiple
    embedding = rows * hidden / tensor
    products = (attention + dense) / tensor
    return Weights(
        layer=products + biases / tensor + norms,
        products=products,
        down=dense / matrices / tensor,
        embedding=embedding + (network.max_position_embeddings * hidden if network.position == "learned" else 0),
        head=0.0 if network.tied else embedding,
        norm=hidden * (2 if network.norm == "layernorm" else 1),
        columns=rows / tensor,
    )
