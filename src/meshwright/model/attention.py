"""Grouped-query attention.

B micro-batch, S sequence, D hidden, N query heads, K key/value heads, H head_dim. Head counts are read off the
projections, so that the same code runs on a tensor-parallel shard.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.model.norm import RMSNorm
from meshwright.model.rope import apply_rope
from meshwright.spec.model import ModelSpec


class Attention(nn.Module):
    """Causal self-attention with rotary positions and optional QK-norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        query, key_value = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q_proj = nn.Linear(spec.hidden_size, query, bias=spec.attention_bias)
        self.k_proj = nn.Linear(spec.hidden_size, key_value, bias=spec.attention_bias)
        self.v_proj = nn.Linear(spec.hidden_size, key_value, bias=spec.attention_bias)
        self.o_proj = nn.Linear(query, spec.hidden_size, bias=spec.attention_output_bias)
        self.q_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.head_dim = spec.head_dim
        self.dropout = spec.attention_dropout

    def forward(self, x_BSD: Tensor, cos_SH: Tensor, sin_SH: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend; input and output are [B, S, D].

        Args:
            cos_SH / sin_SH: the tables, [S, H], or [B, 1, S, H] of positions that differ between sequences.
            bias: what each position may see, [1 or B, 1, S, S] (`mask.attention_bias`); None is all before it.
        """
        q_BNSH = self._heads(self.q_proj(x_BSD), self.q_norm)
        k_BKSH = self._heads(self.k_proj(x_BSD), self.k_norm)
        v_BKSH = self._heads(self.v_proj(x_BSD), None)
        q_BNSH = apply_rope(q_BNSH, cos_SH, sin_SH)
        k_BKSH = apply_rope(k_BKSH, cos_SH, sin_SH)
        out_BNSH = self._attend(q_BNSH, k_BKSH, v_BKSH, bias)
        return self.o_proj(out_BNSH.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, norm: RMSNorm | None) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim))
        if norm is not None:
            heads = norm(heads)
        return heads.transpose(1, 2)

    def _attend(self, q_BNSH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, bias: Tensor | None) -> Tensor:
        queries_per_key = q_BNSH.shape[1] // k_BKSH.shape[1]
        masked = bias is not None
        if queries_per_key > 1 and not takes_fewer_keys(q_BNSH.device.type, q_BNSH.dtype, masked=masked):
            k_BKSH = k_BKSH.repeat_interleave(queries_per_key, dim=1)
            v_BKSH = v_BKSH.repeat_interleave(queries_per_key, dim=1)
        return F.scaled_dot_product_attention(
            q_BNSH,
            k_BKSH,
            v_BKSH,
            attn_mask=bias,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=bias is None,
            enable_gqa=k_BKSH.shape[1] != q_BNSH.shape[1],
        )


def takes_fewer_keys(device_type: str, dtype: torch.dtype, *, masked: bool) -> bool:
    """Whether a fused kernel takes fewer key than query heads.

    On accelerators only flash attention does, in 16 bits and without a mask; without it torch would write out the
    score matrix of every head (ATen/native/transformers/cuda/sdp_utils.cpp).
    """
    return device_type == "cpu" or (dtype in (torch.float16, torch.bfloat16) and not masked)
