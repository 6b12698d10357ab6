"""Rotary position embeddings and the ways they are stretched.

S sequence, H head_dim. The two halves of a head are rotated against each other ("rotate half", the layout of
Hugging Face checkpoints).
"""

import math

import torch
from torch import Tensor

from meshwright.spec.model import ModelSpec, RopeScaling


def inverse_frequencies(spec: ModelSpec) -> tuple[Tensor, float]:
    """Angular frequencies, fp32 [H / 2], and the factor that cos and sin are multiplied by.

    Plain RoPE is arXiv:2104.09864 with base ``rope_theta``; see `RopeScaling` for the stretched kinds.
    """
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    frequencies = 1.0 / spec.rope_theta**exponents
    scaling = spec.rope_scaling
    if scaling is None:
        return frequencies, 1.0
    if scaling.type == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.type == "llama3":
        return _llama3(frequencies, scaling), 1.0
    return _yarn(frequencies, scaling, spec), _yarn_temperature(scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths divided by the factor, short ones kept, a linear blend between (Llama 3.1 release)."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * frequencies + (1 - keep) * frequencies / scaling.factor


def _yarn(frequencies: Tensor, scaling: RopeScaling, spec: ModelSpec) -> Tensor:
    """NTK-by-parts (arXiv:2309.00071, section 3.2): a ramp over dimensions between two numbers of turns."""

    def dimension(turns: float) -> float:
        length = scaling.original_max_position_embeddings
        return spec.head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(spec.rope_theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), spec.head_dim - 1)
    ramp = (torch.arange(spec.head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    stretch = ramp.clamp(0.0, 1.0)
    return stretch * frequencies / scaling.factor + (1 - stretch) * frequencies


def _yarn_temperature(scaling: RopeScaling) -> float:
    """Attention temperature of arXiv:2309.00071, equation 22, folded into cos and sin."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


class RotaryTables:
    """cos and sin by position, made when first asked for and kept for the longest length seen.

    Not a buffer: nothing of it belongs into a checkpoint, and a model built on the meta device needs it for real.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, each fp32 [length, H]."""
        tables = self._tables.get(device)
        if tables is None or tables[0].shape[0] < length:
            tables = self._build(length, device)
            self._tables[device] = tables
        return tables[0][:length], tables[1][:length]

    def _build(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        frequencies, factor = inverse_frequencies(self._spec)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        angles_SH = torch.cat((angles, angles), dim=-1)
        return (angles_SH.cos() * factor).to(device), (angles_SH.sin() * factor).to(device)


def at_positions(table_SH: Tensor, positions_BS: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a table at positions that differ between sequences: [B, 1, S, H] in the dtype of queries and keys."""
    return table_SH.to(dtype)[positions_BS][:, None]


def apply_rope(x_BNSH: Tensor, cos_SH: Tensor, sin_SH: Tensor) -> Tensor:
    """Rotate queries or keys [B, N, S, H] by the angle of their position; dtype is kept.

    The tables are [S, H], or [B, 1, S, H] where positions differ between sequences.
    """
    cos_SH, sin_SH = cos_SH.to(x_BNSH.dtype), sin_SH.to(x_BNSH.dtype)
    first, second = x_BNSH.chunk(2, dim=-1)
    return x_BNSH * cos_SH + torch.cat((-second, first), dim=-1) * sin_SH
