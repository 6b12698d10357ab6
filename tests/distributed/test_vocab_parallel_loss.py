"""The cross entropy over a vocabulary split over ranks: value and gradients as on one rank."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from meshwright.model.loss import IGNORE_INDEX, TokenLoss, VocabShard
from meshwright.parallel.tensor import _GroupReduce
from ranks import run_ranks

TOKENS, WIDTH, PADDED = 21, 16, 256


def inputs(vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, TOKENS, WIDTH, generator=generator)
    weight = torch.randn(PADDED, WIDTH, generator=generator)
    weight[vocab:] = 1e4
    labels = torch.randint(0, vocab, (1, TOKENS), generator=generator)
    labels[0, :2] = torch.tensor([vocab - 1, 0])
    labels[0, 4::5] = IGNORE_INDEX
    return hidden, weight, labels


def split_loss(vocab: int, chunk: int | None, dtype: torch.dtype, masked: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Loss sum, the whole gradient of the hidden states, and this rank's rows of that of the weight."""
    hidden, weight, labels = inputs(vocab)
    if masked:
        labels.fill_(IGNORE_INDEX)
    rank, columns = dist.get_rank(), PADDED // dist.get_world_size()
    hidden = hidden.to(dtype).requires_grad_()
    weight = weight[rank * columns : (rank + 1) * columns].to(dtype).requires_grad_()
    loss = TokenLoss(vocab, chunk)
    loss.shard = VocabShard(start=rank * columns, vocab_size=vocab, reduce=_GroupReduce(dist.group.WORLD))
    total = loss(hidden, weight, labels)
    total.backward()
    hidden_grad = hidden.grad.float()
    dist.all_reduce(hidden_grad)
    return total.detach(), hidden_grad, weight.grad.float()


def whole_loss(vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight, labels = inputs(vocab)
    hidden, weight = hidden.to(dtype).double().requires_grad_(), weight.to(dtype).double().requires_grad_()
    logits = F.linear(hidden, weight)[..., :vocab].flatten(0, 1)
    total = F.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORE_INDEX)
    total.backward()
    return total.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize(
    ("ranks", "vocab"),
    [(2, 256), (2, 200), (2, 100), (4, 200), (4, 100), (4, 129)],
    ids=["no padding", "padding", "rank 1 all padding", "4 ranks", "ranks 2 and 3 all padding", "one real column"],
)
@pytest.mark.parametrize("chunk", [None, 8])
def test_b04_equals_one_rank(ranks: int, vocab: int, chunk: int | None) -> None:
    results = run_ranks(split_loss, ranks, vocab, chunk, torch.float32, False)
    total, hidden_grad, weight_grad = whole_loss(vocab, torch.float32)
    for rank_total, rank_hidden_grad, _ in results:
        assert rank_total.item() == pytest.approx(total.item(), rel=1e-6)
        assert (rank_hidden_grad - hidden_grad).norm() <= 5e-7 * hidden_grad.norm()
    parts = torch.cat([part for _, _, part in results])
    assert (parts - weight_grad).norm() <= 5e-7 * weight_grad.norm()
    assert parts[vocab:].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_logits(dtype: torch.dtype) -> None:
    results = run_ranks(split_loss, 2, 200, None, dtype, False)
    total, hidden_grad, weight_grad = whole_loss(200, dtype)
    assert results[0][0].item() == results[1][0].item() == pytest.approx(total.item(), rel=2e-3)
    for got, want in ((results[0][1], hidden_grad), (torch.cat([part for *_, part in results]), weight_grad)):
        assert (got - want).norm() <= 2e-2 * want.norm()


@pytest.mark.parametrize("chunk", [None, 8])
def test_b15_no_supervised_token(chunk: int | None) -> None:
    for total, *gradients in run_ranks(split_loss, 2, 100, chunk, torch.float32, True):
        assert total == 0
        assert all(gradient.eq(0).all() for gradient in gradients)
