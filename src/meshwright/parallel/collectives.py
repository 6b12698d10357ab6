"""Collectives of tensor parallelism with their gradients.

B micro-batch, S sequence, D hidden. Functional collectives, so that compile traces them and a dispatch mode counts
them; each result is waited for inside its autograd function (an asynchronous tensor that reaches a compiled block
loses its producer's gradient in torch 2.13).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional

SEQUENCE_DIM = 1

# torch 2.13 renames the two; 2.11 has the old names only.
_all_gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
_reduce_scatter = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor


def all_reduce(x: Tensor, group: dist.ProcessGroup, op: str = "sum") -> Tensor:
    """Elementwise reduction over a group; ``op`` is ``sum`` or ``max``."""
    return functional.wait_tensor(functional.all_reduce(x.contiguous(), op, group))


def all_gather(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Concatenate the parts of all ranks along ``dim``."""
    return functional.wait_tensor(_all_gather(x.contiguous(), dim, group))


def reduce_scatter(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """Sum over ranks, each keeping its part along ``dim``."""
    return functional.wait_tensor(_reduce_scatter(x.contiguous(), "sum", dim, group))


class GatherSequence(torch.autograd.Function):
    """[B, S / n, D] to [B, S, D]; the gradient is reduce-scattered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return all_gather(x, SEQUENCE_DIM, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return reduce_scatter(grad, SEQUENCE_DIM, ctx.group), None


class ScatterSequence(torch.autograd.Function):
    """Partial sums [B, S, D] to their sum [B, S / n, D]; the gradient is all-gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return reduce_scatter(x, SEQUENCE_DIM, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return all_gather(grad, SEQUENCE_DIM, ctx.group), None


class CopyToModel(torch.autograd.Function):
    """Identity on a replicated tensor; the gradient is summed over the group ("f" of arXiv:1909.08053)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return all_reduce(grad, ctx.group), None


class ReduceFromModel(torch.autograd.Function):
    """Partial sums to their sum; the gradient passes through ("g" of arXiv:1909.08053)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None
