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


class _CrossEntropySum(torch.autograd.Function):
    """Numerically stable softmax cross entropy, fp32 inside; keeps one [T, V] tensor for backward.

    The two reductions are those of vocab-parallel cross entropy (arXiv:1909.08053, section 3).
    """

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, labels_T: Tensor, shard: VocabShard) -> Tensor:
        columns = logits_TV.shape[1]
        real = min(max(shard.vocab_size - shard.start, 0), columns)
        logits_TV = logits_TV.float()
        largest_T = shard.reduce.max(
            logits_TV[:, :real].amax(dim=1) if real else logits_TV.new_full(labels_T.shape, -torch.inf)
        )
        probabilities_TV = (logits_TV - largest_T[:, None]).exp_()
        if real < columns:
            probabilities_TV[:, real:] = 0
        supervised_T = labels_T != IGNORE_INDEX
        column_T = labels_T - shard.start
        here_T = supervised_T & (column_T >= 0) & (column_T < real)
        column_T = column_T.clamp(0, columns - 1)
        target_T = logits_TV.gather(1, column_T[:, None])[:, 0] - largest_T
        target_T = torch.where(here_T, target_T, 0.0)
        total_T, target_T = shard.reduce.sum(torch.stack((probabilities_TV.sum(dim=1), target_T)))
        probabilities_TV.div_(total_T[:, None])
        ctx.save_for_backward(probabilities_TV, column_T, here_T, supervised_T)
        ctx.logits_dtype = logits_TV.dtype
        return torch.where(supervised_T, total_T.log() - target_T, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        gradient_TV, column_T, here_T, supervised_T = ctx.saved_tensors
        weight_T = grad * supervised_T
        # In place: the probabilities are ours alone, and a second backward over them fails by version.
        gradient_TV.mul_(weight_T[:, None])
        gradient_TV.scatter_add_(1, column_T[:, None], -(weight_T * here_T)[:, None])
        return gradient_TV, None, None


class TokenLoss(nn.Module):
    """Sum of the cross entropies of supervised tokens, from hidden states.

    Args:
        vocab_size: real ids of the vocabulary.
        chunk_tokens: compute logits for this many tokens at a time and again in backward, so that the full
            [T, V] tensor never exists; None computes all at once.
    """

    def __init__(self, vocab_size: int, chunk_tokens: int | None = None) -> None:
        super().__init__()
        self.shard = VocabShard(start=0, vocab_size=vocab_size, reduce=WholeVocab())
        self.chunk_tokens = chunk_tokens

    def forward(self, hidden_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        """0-d fp32 sum over labels that are not `IGNORE_INDEX`."""
        hidden_TD, labels_T = hidden_BSD.flatten(0, 1), labels_BS.flatten()
        if self.chunk_tokens is None or self.chunk_tokens >= len(labels_T):
            return self._loss(hidden_TD, weight_VD, labels_T)
        total = hidden_TD.new_zeros((), dtype=torch.float32)
        chunks = zip(hidden_TD.split(self.chunk_tokens), labels_T.split(self.chunk_tokens), strict=True)
        for hidden, labels in chunks:
            total = total + checkpoint(
                self._loss, hidden, weight_VD, labels, use_reentrant=False, preserve_rng_state=False
            )
        return total

    def _loss(self, hidden_TD: Tensor, weight_VD: Tensor, labels_T: Tensor) -> Tensor:
        logits_TV = F.linear(hidden_TD, weight_VD)
        return _CrossEntropySum.apply(logits_TV, labels_T, self.shard)
