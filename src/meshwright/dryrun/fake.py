"""Fake tensors at half of what torch's own mode costs.

`FakeTensorMode` remembers what an operator returns for arguments of given shapes. Most of its time goes into writing
those shapes down as a key, and into building the result from what it remembers. Both are here for the tensors that a
training step has: dense, with sizes that are plain numbers. Everything else is torch's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache

_META = torch.device("meta")
_VIEW, _UNSAFE_VIEW = torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default


class QuickFakeMode(FakeTensorMode):
    """A `FakeTensorMode` for dense tensors of plain sizes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here: no need to keep the compiler out of every single operator.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "profiler":
            # Named stretches of time, without tensors.
            return func(*args, **(kwargs or {}))
        # The same to a fake tensor, but remembered.
        return self.dispatch(_VIEW if func is _UNSAFE_VIEW else func, types, args, kwargs or {})

    def _prep_args_for_hash(self, result: list[Any], args: Any, state: Any, id_hashed_objects: list[Any]) -> None:
        """Append to ``result`` what decides about the operator's result."""
        if isinstance(args, dict):
            result.extend(args)
            args = args.values()
        for arg in args:
            kind = type(arg)
            if kind is FakeTensor:
                if arg.fake_mode is not self:
                    raise _BypassDispatchCache("not our fake")
                if arg.constant is not None:
                    raise _BypassDispatchCache("constant attribute")
                result += (
                    FakeTensor,
                    arg.dtype,
                    arg.shape,
                    arg.stride(),
                    arg._fake_device,
                    arg.storage_offset(),
                    arg.untyped_storage().nbytes(),
                    arg.requires_grad,
                )
            elif kind in (list, tuple):
                result += (kind, len(arg))
                self._prep_args_for_hash(result, arg, state, id_hashed_objects)
            elif isinstance(arg, Tensor):
                raise _BypassDispatchCache("not a fake tensor")
            else:
                # 1 and 1.0 are the same as keys.
                result += (kind, arg)

    def _validate_cache_key(self, func: Any, args: Sequence[Any], kwargs: Any) -> None:
        # torch remembers its own operators only. What a collective returns follows from its arguments as well.
        if func.namespace != "_c10d_functional":
            super()._validate_cache_key(func, args, kwargs)

    def _get_output_tensor_from_cache_entry(
        self, state: Any, entry: Any, key: Any, func: Any, args: Sequence[Any]
    ) -> Any:
        metadata = entry.metadata
        if metadata is None or entry.inplace_idx is not None:
            return super()._get_output_tensor_from_cache_entry(state, entry, key, func, args)
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
            self.in_kernel_invocation = True
            try:
                torch._C._set_meta_in_tls_dispatch_include(True)
                empty = torch.empty_strided(
                    metadata.shape,
                    metadata.stride,
                    dtype=metadata.dtype,
                    device=_META,
                    requires_grad=metadata.requires_grad,
                )
                if entry.view_idx is not None:
                    storage = args[entry.view_idx].untyped_storage()
                    empty.set_(storage, metadata.storage_offset, metadata.shape, metadata.stride)
            finally:
                self.in_kernel_invocation = False
        return FakeTensor(self, empty, metadata.device)
