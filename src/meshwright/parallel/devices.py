"""What differs between cpu, cuda and npu, in one place."""

import ctypes
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.spec.training import ComputeDtype

GIB = 1024**3

TORCH_DTYPES: dict[ComputeDtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """A family of devices.

    Attributes:
        backend: collective backend of ``torch.distributed``.
        fused_optimizer: whether torch's fused AdamW kernel exists there.
        memory_stats: whether the allocator reports peaks through ``torch.accelerator``.
    """

    name: str
    backend: str
    fused_optimizer: bool
    memory_stats: bool

    @property
    def process_group_backend(self) -> str:
        """Backend of the default process group: objects of the host travel over gloo, tensors where they live."""
        return self.backend if self.name == "cpu" else f"cpu:gloo,{self.name}:{self.backend}"


KINDS = {
    "cpu": DeviceKind(name="cpu", backend="gloo", fused_optimizer=True, memory_stats=False),
    "cuda": DeviceKind(name="cuda", backend="nccl", fused_optimizer=True, memory_stats=True),
    "npu": DeviceKind(name="npu", backend="hccl", fused_optimizer=False, memory_stats=True),
}


def device_kind(name: str) -> DeviceKind:
    """The kind called ``name``. Raises ValueError for a device that Meshwright does not train on."""
    try:
        return KINDS[name]
    except KeyError:
        raise ValueError(f"device {name!r} is not supported; supported: {', '.join(KINDS)}") from None


def local_device_kind() -> DeviceKind:
    """The accelerator of this machine, or the CPU where there is none that Meshwright trains on."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return KINDS.get(accelerator.type, KINDS["cpu"]) if accelerator is not None else KINDS["cpu"]


def local_device(kind: DeviceKind, local_rank: int) -> torch.device:
    """The device of one local rank, made current where devices are numbered."""
    if kind.name == "cpu":
        return torch.device("cpu")
    torch.accelerator.set_device_index(local_rank)
    return torch.device(kind.name, local_rank)


def device_name(kind: DeviceKind, device: torch.device) -> str:
    """What the driver calls a device."""
    return torch.cuda.get_device_name(device) if kind.name == "cuda" else kind.name


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory(kind: DeviceKind) -> None:
    """Let the C library hold on to freed blocks, as the allocators of accelerators do.

    By default glibc maps every large tensor anew and unmaps it when freed, so that each step faults all its pages in
    again (mallopt(3)). Does nothing where tensors live elsewhere or the C library is another one.
    """
    if kind.name != "cpu" or not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def supports_bfloat16(kind: DeviceKind) -> bool:
    """Whether matrix products in bf16 run natively or close to it."""
    return torch.cuda.is_bf16_supported(including_emulation=False) if kind.name == "cuda" else True


class HostCopy:
    """Numbers on their way from the device to the host; reading them later costs no wait in between."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.to("cpu", non_blocking=True)
        self._ready = None
        if values.device.type != "cpu":
            self._ready = torch.Event(device=values.device)
            self._ready.record()

    def read(self) -> list[float]:
        """The numbers, once they have arrived."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._values.tolist()


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Memory of one device in bytes.

    On a CPU allocated and reserved are both the process's resident set; free and total are the machine's.

    Attributes:
        allocated / peak_allocated: live tensors, now and at most since the process started.
        reserved / peak_reserved: what the allocator holds, likewise.
        free: what nobody holds.
        total: the device's size.
    """

    allocated: int
    peak_allocated: int
    reserved: int
    peak_reserved: int
    free: int
    total: int


def memory_use(kind: DeviceKind, device: torch.device) -> MemoryUse:
    """Use now; peaks since the start of the process."""
    if not kind.memory_stats:
        return _process_memory()
    stats = torch.accelerator.memory_stats(device)
    free, total = torch.accelerator.get_memory_info(device)
    return MemoryUse(
        allocated=stats["allocated_bytes.all.current"],
        peak_allocated=stats["allocated_bytes.all.peak"],
        reserved=stats["reserved_bytes.all.current"],
        peak_reserved=stats["reserved_bytes.all.peak"],
        free=free,
        total=total,
    )


def _process_memory() -> MemoryUse:
    import resource

    import psutil

    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    now, machine = psutil.Process().memory_info().rss, psutil.virtual_memory()
    return MemoryUse(
        allocated=now,
        peak_allocated=peak,
        reserved=now,
        peak_reserved=peak,
        free=machine.available,
        total=machine.total,
    )
