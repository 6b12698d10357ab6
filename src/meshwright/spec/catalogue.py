"""The device catalogue: names of accelerators to `Device` and `Cluster` values. One source for plan and train."""

import difflib
from functools import lru_cache

from meshwright.spec.cluster import GIB, Cluster, Device, NumberFormat
from meshwright.spec.devices import NVIDIA, OTHERS, Hardware

HARDWARE: tuple[Hardware, ...] = (*NVIDIA, *OTHERS)


def hardware(name: str) -> Hardware:
    """The catalogue entry of a name or alias.

    Raises:
        ValueError: no such entry; the message names the closest, or all.
    """
    wanted = name.lower().replace("_", "-")
    names = _names()
    if wanted in names:
        return names[wanted]
    near = difflib.get_close_matches(wanted, names, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(e.name for e in HARDWARE)}"
    raise ValueError(f"no device {name!r} in the catalogue; {hint}")


def device(name: str) -> Device:
    """A device of the catalogue. Raises ValueError where the name is unknown."""
    entry = hardware(name)
    rates: dict[NumberFormat, float | None] = {
        "float4": entry.fp4,
        "float8": entry.fp8,
        "bfloat16": entry.bf16,
        "float16": entry.fp16 or entry.bf16,
        "float32": entry.fp32,
    }
    return Device(
        name=entry.name,
        title=entry.title,
        family=entry.family,
        memory_bytes=entry.memory_gib * GIB,
        bandwidth=entry.bandwidth * 1e12,
        flops={key: rate * 1e12 for key, rate in rates.items() if rate is not None},
        source=entry.source,
    )


def device_cluster(name: str, num_devices: int, devices_per_node: int | None = None) -> Cluster:
    """A cluster of catalogue devices in their usual nodes and network.

    Args:
        devices_per_node: devices that the fast link joins; None is the catalogue's.

    Raises:
        ValueError: unknown name, or a number below 1.
    """
    for what, number in (("devices", num_devices), ("devices per node", devices_per_node)):
        if number is not None and number < 1:
            raise ValueError(f"{number} {what}; legal: 1 or more")
    entry = hardware(name)
    per_node = devices_per_node or entry.devices_per_node
    return Cluster(
        device=device(entry.name),
        num_devices=num_devices,
        devices_per_node=per_node,
        intra=entry.link,
        inter=entry.network,
        host_memory_bytes=entry.host_gib * GIB * per_node / entry.devices_per_node,
    )


def hardware_of_driver(device_name: str) -> Hardware | None:
    """The entry of a device by what its driver calls it, or None where it is not known."""
    found = [(len(part), entry) for entry in HARDWARE for part in entry.driver_names if part in device_name]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def peak_flops(device_name: str) -> float | None:
    """Dense 16-bit FLOP/s of a device by what its driver calls it, or None where it is not known."""
    entry = hardware_of_driver(device_name)
    rate = (entry.bf16 or entry.fp16) if entry else None
    return None if rate is None else rate * 1e12


@lru_cache(maxsize=1)
def _names() -> dict[str, Hardware]:
    own = {entry.name: entry for entry in HARDWARE}
    return {alias: entry for entry in HARDWARE for alias in entry.aliases} | own
