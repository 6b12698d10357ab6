"""Peak matrix-product rates of devices, for MFU.

Dense 16-bit rates in FLOP/s from the vendors' data sheets; the name is a part of what the driver reports.
"""

PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
    ("V100", 125e12),
)


def peak_flops(device_name: str) -> float | None:
    """Dense 16-bit FLOP/s of a device, or None where it is not known."""
    for part, peak in PEAK_FLOPS:
        if part in device_name:
            return peak
    return None
