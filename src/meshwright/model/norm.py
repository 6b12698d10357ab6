"""Root-mean-square normalisation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """``x / rms(x) * weight`` (arXiv:1910.07467), computed in fp32 and returned in the dtype of ``x``."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of ``x``."""
        with torch.autocast(x.device.type, enabled=False):
            weight = self.weight.float()
            return F.rms_norm(x.float(), (weight.shape[0],), weight, self.eps).to(x.dtype)
