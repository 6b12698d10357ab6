"""Whether a rank's memory fits a device."""

from dataclasses import dataclass

from meshwright.dryrun.allocator import OutOfMemory, replay
from meshwright.dryrun.run import DryRun

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Attributes:
    fits: with the allocator's default settings.
    spare: bytes of the device left over; negative is what is missing.
    text: the verdict in words.
    """

    fits: bool
    spare: int
    text: str


def verdict(result: DryRun, memory_bytes: float, device: str) -> Verdict:
    """Hold a dry run against a device with ``memory_bytes`` for one process."""
    capacity = int(memory_bytes)
    size = f"{device} ({capacity / GIB:.1f} GiB)"
    if result.reserved is None:
        return _plain(result.allocated, capacity, size)
    native, expandable = result.reserved.native, result.reserved.expandable
    if native <= capacity:
        return Verdict(fits=True, spare=capacity - native, text=f"fits {size} with {_gib(capacity - native)} to spare")
    if _fits_by_emptying(result, capacity):
        text = f"fits {size}, but only by emptying the allocator's caches, which costs time"
        return Verdict(fits=True, spare=capacity - result.allocated, text=text)
    if expandable <= capacity:
        text = f"fits {size} with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True only"
        return Verdict(fits=False, spare=capacity - expandable, text=text)
    return _plain(min(native, expandable), capacity, size)


def _fits_by_emptying(result: DryRun, capacity: int) -> bool:
    if result.execution is None:
        return False
    try:
        replay(result.execution.tape, capacity=capacity)
    except OutOfMemory:
        return False
    return True


def _plain(needed: int, capacity: int, size: str) -> Verdict:
    spare = capacity - needed
    text = f"fits {size} with {_gib(spare)} to spare" if spare >= 0 else f"does not fit {size}: {_gib(-spare)} too much"
    return Verdict(fits=spare >= 0, spare=spare, text=text)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
