"""What a dry run imagines its tensors to live on."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.dryrun.cuda_kernels import cuda_kernels
from meshwright.dryrun.tracker import Workspace
from meshwright.dryrun.workspaces import CPU_WORKSPACES, CUDA_WORKSPACES, matmul_workspace
from meshwright.spec.cluster import DeviceFamily

TargetName = Literal["cuda", "cpu"]
CUDA_ROUNDING = 512
"""Bytes; c10/cuda/CUDACachingAllocator.h, kMinBlockSize."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A device as far as memory is concerned.

    Attributes:
        kernels: context in which operators choose the kernels that they choose there.
        held: bytes that libraries keep from the first step on.
        cached: its memory comes from a caching allocator.
    """

    name: TargetName
    rounding: int
    workspaces: Mapping[Any, Workspace]
    kernels: Callable[[], AbstractContextManager[Any]] = nullcontext
    held: tuple[int, ...] = ()
    cached: bool = False


def target(name: TargetName, family: DeviceFamily = "hopper") -> Target:
    """A target by name; ``family`` decides what CUDA's libraries keep."""
    if name == "cpu":
        return Target(name=name, rounding=1, workspaces=CPU_WORKSPACES)
    return Target(
        name=name,
        rounding=CUDA_ROUNDING,
        workspaces=CUDA_WORKSPACES,
        kernels=cuda_kernels,
        # One handle of the thread that runs forward, one of the thread that runs backward.
        held=(matmul_workspace(family),) * 2,
        cached=True,
    )
