"""ModelSpec: the numbers of the network, and nothing else."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched past the length that a model was first trained on.

    ``llama3`` follows the Llama 3.1 release (wavelength bands between ``low_freq_factor`` and
    ``high_freq_factor``); ``yarn`` follows arXiv:2309.00071 (ramp between ``beta_slow`` and ``beta_fast``,
    attention temperature folded into cos/sin); ``linear`` divides positions by ``factor``.
    """

    type: Literal["llama3", "yarn", "linear"]
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer of the Llama family (RMSNorm, RoPE, GQA, SwiGLU).

    Attributes:
        attention_bias: bias on the query, key and value projections (Qwen2).
        attention_output_bias: bias on the attention output projection.
        qk_norm: RMSNorm over ``head_dim`` on queries and keys before RoPE (Qwen3).
        sliding_window: tokens each position may look back on, itself included; None is full attention.
        sliding_window_layers: layers the window holds for; None is all of them.
        vocab_pad_multiple: the embedding and head have ``vocab_size`` rounded up to this many rows. It never
            depends on the layout, so that every layout loads every checkpoint.
        init_std: standard deviation of the normal initialisation; output projections of a block
            use ``init_std / sqrt(2 * num_layers)`` (GPT-2).
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 4096
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    sliding_window_layers: tuple[int, ...] | None = None
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    vocab_pad_multiple: int = 128
    init_std: float = 0.02

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding and the head: ``vocab_size`` rounded up to ``vocab_pad_multiple``."""
        return -(-self.vocab_size // self.vocab_pad_multiple) * self.vocab_pad_multiple

    def window_of_layer(self, layer: int) -> int | None:
        """Sliding window of one layer in tokens, or None where it attends to everything before it."""
        if self.sliding_window is None:
            return None
        if self.sliding_window_layers is None or layer in self.sliding_window_layers:
            return self.sliding_window
        return None
