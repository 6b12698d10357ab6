"""Root-mean-square normalisation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def compute_dtype(x: Tensor) -> torch.dtype:
    """Dtype of matrix products with ``x``: that of autocast, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension (arXiv:1910.07467), computed in fp32.

    The result has the dtype of ``x``; under autocast that of autocast, once instead of in each projection it feeds.
    """
    dtype = compute_dtype(x)
    with torch.autocast(x.device.type, enabled=False):
        return F.rms_norm(x.float(), (weight.shape[0],), weight.float(), eps).to(dtype)


class RMSNorm(nn.Module):
    """`rms_norm` with a learned weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of ``x``."""
        return rms_norm(x, self.weight, self.eps)
