"""What an error says about memory: whether it is about memory at all, how much was asked for, and where."""

import re
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import torch
from torch import nn

from meshwright.checkpoint.errors import CheckpointError

UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) (\w+)")
ALLOCATED = re.compile(r"([\d.]+) (\w+) is allocated by PyTorch")
UNUSED = re.compile(r"([\d.]+) (\w+) is reserved by PyTorch but unallocated")
"""Of torch's message: c10/cuda/CUDACachingAllocator.cpp and c10/core/impl/alloc_cpu.cpp."""
SAYS_SO = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "outofmemory")
TORCH_BACKWARD = frozenset({"_engine_run_backward", "backward_one_chunk", "stage_backward"})
MICRO_BATCH_VARIABLES = (
    ("forward_backward", "number", 1),
    ("forward_one_chunk", "fwd_chunk_id", 0),
    ("backward_one_chunk", "bwd_chunk_id", 0),
)
"""Functions of ours and of torch's pipeline stages, their variable, and what it counts from."""


class InStep(NamedTuple):
    """Where in `train_step` an error came from; micro-batches count from 1."""

    phase: str
    micro_batch: int | None = None
    module: str = ""
    operator: str = ""


def memory_error(error: BaseException) -> BaseException | None:
    """The error about memory that an error is or was raised from."""
    seen: BaseException | None = error
    while seen is not None:
        if _is_about_memory(seen):
            return seen
        seen = seen.__cause__
    return None


def _is_about_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and not isinstance(error, CheckpointError) and _says_so(str(error))


def _says_so(text: str) -> bool:
    return any(words in text.lower() for words in SAYS_SO)


def ranks_short_of_memory(error: BaseException) -> list[int]:
    """Ranks whose memory a save that failed on all ranks together died of."""
    if not isinstance(error, CheckpointError):
        return []
    return [failure.rank for failure in error.failures if _says_so(failure.cause) or "MemoryError" in failure.cause]


def sizes_told(error: BaseException) -> tuple[int | None, int | None, int | None]:
    """Bytes (asked for, allocated, reserved but not allocated) as far as the message of torch tells them."""
    asked, allocated, unused = (_size(pattern, str(error)) for pattern in (ASKED, ALLOCATED, UNUSED))
    return asked, allocated, unused


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else None


def in_step(error: BaseException, model: nn.Module) -> InStep | None:
    """Where the call stack of an error stood inside a training step; None where it did not.

    The stack tells all that Python ran, but not what autograd runs in C++: the module of a backward pass is known only
    where it is recomputed.
    """
    frames = list(_frames(error))
    functions = [frame.f_code.co_name for frame in frames]
    if "train_step" not in functions:
        return None
    names = {id(module): name for name, module in model.named_modules()}
    modules = [names[id(owner)] for frame in frames if id(owner := frame.f_locals.get("self")) in names]
    if "forward_backward" in functions:
        backward = not TORCH_BACKWARD.isdisjoint(functions)
        # A micro-batch's forward pass can run in a backward frame only as recomputation.
        module = next((name for name in reversed(modules) if name), "")
        return InStep("backward" if backward else "forward", _micro_batch(frames), module)
    files = [frame.f_code.co_filename for frame in frames]
    updating = any(file.endswith("meshwright/train/optimizer.py") for file in files)
    return InStep("optimizer step" if updating else "gradients")


def building(error: BaseException) -> str:
    """Module whose weights were being made, as far as the call stack of an error tells."""
    owners = [frame.f_locals.get("self") for frame in _frames(error)]
    modules = [owner for owner in owners if isinstance(owner, nn.Module)]
    if not modules:
        return ""
    return next((name for name, module in modules[0].named_modules() if module is modules[-1]), "")


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Frames of an error and of those it was raised from, outermost first."""
    seen: BaseException | None = error
    while seen is not None:
        trace = seen.__traceback__
        while trace is not None:
            yield trace.tb_frame
            trace = trace.tb_next
        seen = seen.__cause__


def _micro_batch(frames: list[FrameType]) -> int | None:
    for frame in reversed(frames):
        for function, variable, first in MICRO_BATCH_VARIABLES:
            if frame.f_code.co_name == function and variable in frame.f_locals:
                return int(frame.f_locals[variable]) + 1 - first
    return None
