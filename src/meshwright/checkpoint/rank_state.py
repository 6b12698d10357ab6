"""What each rank keeps for itself (random number generators), as JSON without pickle."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_BYTES, _TENSOR = "__bytes__", "__tensor__"


def encode(state: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors (any dtype and shape) and bytes become base64 text; everything else must be JSON already."""
    return {name: _encode(value) for name, value in state.items()}


def decode(state: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of ``encode``; tensors come back on the CPU."""
    return {name: _decode(value) for name, value in state.items()}


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        dtype = str(value.dtype).removeprefix("torch.")
        data = base64.b64encode(flat.numpy().tobytes()).decode()
        return {_TENSOR: data, "dtype": dtype, "shape": list(value.shape)}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict) and _BYTES in value:
        return base64.b64decode(value[_BYTES])
    if isinstance(value, dict) and _TENSOR in value:
        data = bytearray(base64.b64decode(value[_TENSOR]))
        dtype = getattr(torch, value["dtype"])
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(value["shape"]).clone()
    return value
