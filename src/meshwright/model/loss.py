"""Cross entropy over a vocabulary that may be padded and may be split over ranks.

T tokens, V vocabulary columns held here. The loss is a sum over supervised tokens: the caller divides by the number
of supervised tokens in the global batch, so that every way of splitting the batch is a plain sum.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

IGNORE_INDEX = -100


class VocabReduce(Protocol):
    """Reductions over the ranks that hold the other columns of the vocabulary."""

    def max(self, values: Tensor) -> Tensor:
        """Elementwise maximum over ranks."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over ranks."""
        ...


class WholeVocab:
    """Every column is here: nothing to reduce."""

    def max(self, values: Tensor) -> Tensor:
        """Return ``values``."""
        return values

    def sum(self, values: Tensor) -> Tensor:
        """Return ``values``."""
        return values


@dataclass(frozen=True, kw_only=True)
class VocabShard:
    """Which vocabulary columns the logits hold.

    Attributes:
        start: id of the first column.
        vocab_size: real ids; columns past it are padding and never enter the softmax.
    """

    start: int
    vocab_size: int
    reduce: VocabReduce


def block_elements(device_type: str) -> int:
    """Logits at a time: few enough to stay in the cache of a CPU, or many enough to be few kernels on a device."""
    return 2**19 if device_type == "cpu" else 2**26


def _row_blocks(logits_TV: Tensor) -> list[slice]:
    """Runs of rows whose fp32 temporaries live at the same time."""
    rows = max(block_elements(logits_TV.device.type) // logits_TV.shape[1], 1)
    return [slice(first, first + rows) for first in range(0, logits_TV.shape[0], rows)]


class _CrossEntropySum(torch.autograd.Function):
    """Softmax cross entropy with fp32 arithmetic over logits of any dtype.

    Keeps nothing but the logits, which become their own gradient: the caller must not use them again. The two
    reductions are those of vocab-parallel cross entropy (arXiv:1909.08053, section 3).
    """

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, labels_T: Tensor, shard: VocabShard) -> tuple[Tensor, Tensor]:
        columns = logits_TV.shape[1]
        real = min(max(shard.vocab_size - shard.start, 0), columns)
        supervised_T = labels_T != IGNORE_INDEX
        column_T = labels_T - shard.start
        here_T = supervised_T & (column_T >= 0) & (column_T < real)
        column_T = column_T.clamp(0, columns - 1)
        local_T = torch.cat([logits_TV[rows, :real].float().logsumexp(dim=1) for rows in _row_blocks(logits_TV)])
        largest_T = shard.reduce.max(local_T)
        target_T = logits_TV.gather(1, column_T[:, None])[:, 0].float() - largest_T
        target_T = torch.where(here_T, target_T, 0.0)
        total_T, target_T = shard.reduce.sum(torch.stack(((local_T - largest_T).exp(), target_T)))
        ctx.save_for_backward(logits_TV, largest_T + total_T.log(), column_T, here_T, supervised_T)
        ctx.real = real
        loss_T = torch.where(supervised_T, total_T.log() - target_T, 0.0)
        ctx.mark_non_differentiable(loss_T)
        ctx.set_materialize_grads(False)
        return loss_T.sum(), loss_T

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, None, None]:  # type: ignore[override]
        logits_TV, normalizer_T, column_T, here_T, supervised_T = ctx.saved_tensors
        weight_T = grad * supervised_T
        target_T = -(weight_T * here_T)
        # In place: the logits are ours alone, and a second backward over them fails by version.
        for rows in _row_blocks(logits_TV):
            gradient = (logits_TV[rows].float() - normalizer_T[rows, None]).exp_().mul_(weight_T[rows, None])
            gradient[:, ctx.real :] = 0
            gradient.scatter_add_(1, column_T[rows, None], target_T[rows, None])
            logits_TV[rows] = gradient
        return logits_TV.detach(), None, None


class TokenLoss(nn.Module):
    """Sum of the cross entropies of supervised tokens, from hidden states.

    Args:
        vocab_size: real ids of the vocabulary.
        chunk_tokens: compute logits for this many tokens at a time and again in backward, so that the full
            [T, V] tensor never exists; None computes all at once.

    Attributes:
        by_sequence: where training adds the loss sum of each sequence of a micro-batch, fp32 [B]; None adds nothing.
    """

    def __init__(self, vocab_size: int, chunk_tokens: int | None = None) -> None:
        super().__init__()
        self.shard = VocabShard(start=0, vocab_size=vocab_size, reduce=WholeVocab())
        self.chunk_tokens = chunk_tokens
        self.by_sequence: list[Tensor] | None = None

    def forward(self, hidden_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        """0-d fp32 sum over labels that are not `IGNORE_INDEX`."""
        hidden_TD, labels_T = hidden_BSD.flatten(0, 1), labels_BS.flatten()
        if self.chunk_tokens is None or self.chunk_tokens >= len(labels_T):
            total, loss_T = self._loss(hidden_TD, weight_VD, labels_T)
            self._note([loss_T], labels_BS)
            return total
        total = hidden_TD.new_zeros((), dtype=torch.float32)
        chunks = zip(hidden_TD.split(self.chunk_tokens), labels_T.split(self.chunk_tokens), strict=True)
        losses: list[Tensor] = []
        for hidden, labels in chunks:
            part, loss_T = checkpoint(
                self._loss, hidden, weight_VD, labels, use_reentrant=False, preserve_rng_state=False
            )
            total = total + part
            losses.append(loss_T)
        self._note(losses, labels_BS)
        return total

    def _loss(self, hidden_TD: Tensor, weight_VD: Tensor, labels_T: Tensor) -> tuple[Tensor, Tensor]:
        """The sum, and the loss of each token, through which no gradient goes."""
        logits_TV = F.linear(hidden_TD, weight_VD)
        return _CrossEntropySum.apply(logits_TV, labels_T, self.shard)

    def _note(self, losses: list[Tensor], labels_BS: Tensor) -> None:
        if self.by_sequence is not None and self.training:
            self.by_sequence.append(torch.cat(losses).view(labels_BS.shape).sum(dim=1))
