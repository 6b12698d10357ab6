"""Memory that kernels take and give back inside, which no dispatch mode sees; from the sources of torch."""

from typing import Any

import torch

from meshwright.dryrun.tracker import Workspace
from meshwright.spec.cluster import DeviceFamily

_aten = torch.ops.aten
KIB, MIB = 2**10, 2**20


def _logsumexp(args: tuple[Any, ...], result: Any) -> int:
    """``exp(x - max)`` and the maxima: aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl."""
    x = args[0]
    return x.numel() * x.element_size() + result.numel() * result.element_size()


def _flash_backward(args: tuple[Any, ...], _result: Any) -> int:
    """fp32 accumulator of the query gradient and the row sums; whole-head key and value gradients under GQA.

    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd: ``dq_accum``, ``softmax_d`` and
    ``dk_expanded``, ``dv_expanded``. Rows are padded to 128, heads to 32 elements.
    """
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    padded_rows, padded_width = -(-rows // 128) * 128, -(-width // 32) * 32
    accumulator = 4 * batch * heads * padded_rows * (padded_width + 1)
    if key.shape[1] == heads:
        return accumulator
    return accumulator + 2 * key.element_size() * batch * key.shape[2] * heads * width


def _efficient_backward(args: tuple[Any, ...], _result: Any) -> int:
    """fp32 accumulator of the query gradient and, for each row, the sum of gradient times output.

    ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h, ``workspace_elements_gq`` and ``delta``. Rows
    come in blocks of 64, heads in multiples of 64 elements.
    """
    batch, heads, rows, width = args[1].shape
    return 4 * batch * heads * (-(-rows // 64) * 64 * (-(-width // 64) * 64) + rows)


CPU_WORKSPACES: dict[Any, Workspace] = {_aten.logsumexp.default: _logsumexp}
CUDA_WORKSPACES: dict[Any, Workspace] = {
    _aten.logsumexp.default: _logsumexp,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}


def matmul_workspace(family: DeviceFamily) -> int:
    """Bytes that cuBLAS keeps for each handle and stream: ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize."""
    return 32 * MIB if family in ("hopper", "blackwell") else 8320 * KIB
