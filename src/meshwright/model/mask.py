"""Which positions attention may see, as numbers added to its scores.

B micro-batch, S sequence. Fused kernels take such a bias as it is, so that all layers share one; torch turns a boolean
mask into a bias of its own in every layer, and keeps each until backward
(ATen/native/transformers/attention.cpp, ``convert_boolean_attn_mask``).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.spec.attention_bias import binding_window, row_elements

ROWS_AT_ONCE = 512
"""Rows compared at once: for all at once the answers alone would take more memory than the bias."""


def layer_biases(
    windows: Sequence[int | None], length: int, positions_BS: Tensor | None, dtype: torch.dtype, device: torch.device
) -> list[Tensor | None]:
    """`attention_bias` for each layer by its window; layers that see the same share it."""
    binding = [binding_window(window, length) for window in windows]
    made = {
        window: attention_bias(length, window=window, positions_BS=positions_BS, dtype=dtype, device=device)
        for window in dict.fromkeys(binding)
    }
    return [made[window] for window in binding]


def attention_bias(
    length: int, *, window: int | None, positions_BS: Tensor | None, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """0 where a position may look, minus infinity elsewhere; [1 or B, 1, S, S]. None: at all before it, and itself.

    Args:
        length: S.
        window: positions that each may look back on, itself included; None is all.
        positions_BS: int64, of each token inside its document, which is all that it may see; None is everything.
        dtype: of the queries.
    """
    column_S = torch.arange(length, device=device)
    if positions_BS is not None:
        first = column_S - (positions_BS if window is None else positions_BS.clamp(max=window - 1))
    elif window is not None:
        first = column_S - (window - 1)
    else:
        return None
    sequences = first.shape[:-1].numel()
    bias = torch.zeros((sequences, 1, length, row_elements(length)), dtype=dtype, device=device)[..., :length]
    for begin in range(0, length, ROWS_AT_ONCE):
        rows = slice(begin, begin + ROWS_AT_ONCE)
        _hide(bias[:, 0, rows], column_S, column_S[rows], first.view(sequences, length)[:, rows])
    return bias


def _hide(bias_BRS: Tensor, column_S: Tensor, row_R: Tensor, first_BR: Tensor) -> None:
    """Minus infinity in rows of a bias for columns after the row itself, and before the first that it may see."""
    hidden_BRS = column_S < first_BR[..., None]
    hidden_BRS |= column_S > row_R[:, None]
    bias_BRS.masked_fill_(hidden_BRS, float("-inf"))
