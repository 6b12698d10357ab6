"""The kernels that operators run as on CUDA, for tensors that say they are on the CPU.

Tensors of a dry run are fake CPU tensors: without a GPU torch cannot run backward on fake CUDA ones. Composite
operators would then be taken apart as on a CPU. Here those that CUDA runs as one kernel become that kernel again, or
something that allocates and keeps the same.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from meshwright.dryrun.exchange import exchanged
from meshwright.model import attention, loss

_aten = torch.ops.aten
FLASH_DTYPES = (torch.float16, torch.bfloat16)
FLASH_LARGEST_HEAD = 256
"""ATen/native/transformers/cuda/sdp_utils.cpp, check_head_dim_size_flash."""


@contextmanager
def cuda_kernels() -> Iterator[None]:
    """Choose kernels as CUDA does."""
    overrides = {"rms_norm": _rms_norm, "scaled_dot_product_attention": _attention, "dropout": _dropout}
    library = torch.library.Library("aten", "IMPL")
    with ExitStack() as stack:
        stack.callback(library._destroy)
        for name, kernel in overrides.items():
            library.impl(name, kernel, "AutogradCPU")
        stack.enter_context(exchanged(loss, "block_elements", lambda own: lambda _device: own("cuda")))
        stack.enter_context(
            exchanged(
                attention, "takes_fewer_keys", lambda own: lambda _device, *args, **kwargs: own("cuda", *args, **kwargs)
            )
        )
        yield


class _FusedRmsNorm(torch.autograd.Function):
    """Storages of ``aten::_fused_rms_norm``: it keeps its input and one fp32 statistic for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        statistics = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, statistics)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def _rms_norm(x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    assert weight is not None, "the decoder's norms all have weights"
    return _FusedRmsNorm.apply(x, weight)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The choice of ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend: flash, efficient, math.

    A mask is a bias in the queries' dtype with aligned rows (`meshwright.model.mask`), which is taken as it is.
    """
    flash = query.dtype in FLASH_DTYPES and query.shape[-1] <= FLASH_LARGEST_HEAD and attn_mask is None
    if flash:
        return _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if not enable_gqa:
        bias = None if attn_mask is None else attn_mask.expand(*query.shape[:3], key.shape[2])
        keeps = query.requires_grad or key.requires_grad or value.requires_grad
        return _aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, keeps, dropout_p, is_causal, scale=scale
        )[0]
    return _aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    return _aten.native_dropout(x, p, train)[0] if train and p > 0 else x
