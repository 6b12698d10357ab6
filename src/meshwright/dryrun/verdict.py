"""Whether a rank's memory fits a device."""

from dataclasses import dataclass

from meshwright.dryrun.allocator import OutOfMemory, replay
from meshwright.dryrun.run import DryRun
from meshwright.plan.memory.constants import constants
from meshwright.spec.cluster import GIB, Device

ENGINE = "meshwright"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Attributes:
    fits: with the allocator's default settings.
    spare: bytes of the device left over; negative is what is missing.
    outside: bytes outside the allocator; see `outside_allocator`.
    text: the verdict in words.
    """

    fits: bool
    spare: int
    outside: int
    text: str


def outside_allocator(result: DryRun, device: Device) -> int:
    """Bytes that device context, kernels and communicators take: the planner's constant. A CPU has none of them."""
    return 0 if result.target == "cpu" else int(constants(ENGINE, device.family).context_bytes)


def verdict(result: DryRun, device: Device) -> Verdict:
    """Hold a dry run against the memory that one process can use of a device."""
    outside = outside_allocator(result, device)
    usable = int(device.memory_bytes)
    capacity = usable - outside
    size = f"{device.name} ({usable / GIB:.2f} GiB usable)"
    fits, spare, text = _held_against(result, capacity, size)
    return Verdict(fits=fits, spare=spare, outside=outside, text=text)


def _held_against(result: DryRun, capacity: int, size: str) -> tuple[bool, int, str]:
    if result.reserved is None:
        return _plain(result.allocated, capacity, size)
    native, expandable = result.reserved.native, result.reserved.expandable
    if native <= capacity:
        return _plain(native, capacity, size)
    if _fits_by_emptying(result, capacity):
        text = f"fits {size}, but only by emptying the allocator's caches, which costs time"
        return True, capacity - result.allocated, text
    if expandable <= capacity:
        text = f"fits {size} with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True only"
        return False, capacity - expandable, text
    return _plain(min(native, expandable), capacity, size)


def _fits_by_emptying(result: DryRun, capacity: int) -> bool:
    if result.execution is None:
        return False
    try:
        replay(result.execution.tape, capacity=capacity)
    except OutOfMemory:
        return False
    return True


def _plain(needed: int, capacity: int, size: str) -> tuple[bool, int, str]:
    spare = capacity - needed
    text = f"fits {size} with {_gib(spare)} to spare" if spare >= 0 else f"does not fit {size}: {_gib(-spare)} too much"
    return spare >= 0, spare, text


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
