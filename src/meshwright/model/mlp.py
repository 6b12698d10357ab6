"""Gated feed-forward network."""

import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.spec.model import ModelSpec


class MLP(nn.Module):
    """SwiGLU (arXiv:2002.05202): ``down(silu(gate(x)) * up(x))``; input and output are [..., hidden_size]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=spec.mlp_bias)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=spec.mlp_bias)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=spec.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position by itself."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
