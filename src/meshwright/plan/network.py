"""Network: what the planner needs to know of a transformer, wide enough for every engine's models.

`ModelSpec` describes the models that Meshwright trains; published measurements also come from GPT, MPT,
mixture-of-experts and latent-attention models.
"""

from dataclasses import dataclass
from typing import Literal

from meshwright.spec.model import ModelSpec

PositionKind = Literal["rope", "learned", "alibi", "none"]
NormKind = Literal["rmsnorm", "layernorm"]


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Mixture of experts in place of the feed-forward network.

    Attributes:
        num_experts / experts_per_token: routed experts in all, and how many each token visits.
        intermediate_size: of one routed expert.
        shared_intermediate_size: of the shared experts together; 0 is none.
        dense_layers: leading layers that keep a dense feed-forward network.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (arXiv:2405.04434). Ranks are widths of the compressed projections."""

    query_rank: int | None
    key_value_rank: int
    nope_head_dim: int
    rope_head_dim: int
    value_head_dim: int


@dataclass(frozen=True, kw_only=True)
class Network:
    """Sizes of a decoder-only transformer.

    Attributes:
        vocab_size: rows of the embedding before an engine pads them.
        gated: SwiGLU (three matrices) instead of a plain two-matrix feed-forward network.
        bias: biases on all linear layers; ``qkv_bias`` on the query, key and value projections alone.
        mtp_layers: extra multi-token-prediction layers after the last one (arXiv:2412.19437).
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    vocab_pad_multiple: int = 1
    gated: bool = True
    norm: NormKind = "rmsnorm"
    bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    position: PositionKind = "rope"
    max_position_embeddings: int = 0
    tied: bool = False
    window: int | None = None
    window_layers: tuple[int, ...] | None = None
    dropout: float = 0.0
    experts: Experts | None = None
    latent: LatentAttention | None = None
    mtp_layers: int = 0

    @property
    def query_width(self) -> int:
        """Columns of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.num_kv_heads * self.head_dim

    def window_of_layer(self, layer: int) -> int | None:
        """Sliding window of one layer in tokens, or None where it attends to everything before it."""
        return self.window if self.window_layers is None or layer in self.window_layers else None

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.experts is not None and layer >= self.experts.dense_layers

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> "Network":
        """The network that Meshwright builds from a ModelSpec."""
        return cls(
            num_layers=spec.num_layers,
            hidden_size=spec.hidden_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            intermediate_size=spec.intermediate_size,
            vocab_size=spec.vocab_size,
            vocab_pad_multiple=spec.vocab_pad_multiple,
            bias=spec.mlp_bias and spec.attention_output_bias,
            qkv_bias=spec.attention_bias,
            qk_norm=spec.qk_norm,
            tied=spec.tie_word_embeddings,
            window=spec.sliding_window,
            window_layers=spec.sliding_window_layers,
            dropout=spec.hidden_dropout,
        )
