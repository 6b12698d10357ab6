"""Workspaces that cuBLAS keeps from the first step on."""

from meshwright.spec.cluster import DeviceFamily

MIB = 2**20
NVIDIA: tuple[DeviceFamily, ...] = ("volta", "ampere", "ada", "hopper", "blackwell")
WIDE: tuple[DeviceFamily, ...] = ("hopper", "blackwell")


def cublas_workspaces(family: DeviceFamily, *, deterministic: bool = False) -> float:
    """Bytes of its two handles, of the threads that run forward and backward.

    32 MiB each on Hopper and Blackwell, else 8.125 MiB (PyTorch ``aten/src/ATen/cuda/CublasHandlePool.cpp``,
    ``parseChosenWorkspaceSize``); deterministic runs set ``CUBLAS_WORKSPACE_CONFIG=:4096:8``, 32 MiB.
    """
    if family not in NVIDIA:
        return 0.0
    return 2 * (32 if family in WIDE or deterministic else 8.125) * MIB
