"""Machine: rates of one device under one engine, with a calibration in place of fitted shares where there is one."""

from dataclasses import dataclass, field
from functools import lru_cache

from meshwright.plan.time.constants import Constants, constants
from meshwright.spec.cluster import Cluster, DeviceFamily, MatmulRate, NumberFormat

# Multiprocessors, compute units or cube cores of the family's data-centre part (hardware.csv and vendor data sheets):
# tiles of a matrix product are dealt out to them in waves.
UNITS: dict[DeviceFamily, int] = {
    "volta": 80,
    "ampere": 108,
    "hopper": 132,
    "blackwell": 148,
    "ada": 142,
    "cdna3": 304,
    "cdna4": 256,
    "ascend": 24,
    "cpu": 1,
}

KERNEL_FLOOR = 2.0e-6
"""Seconds that even an empty kernel occupies an accelerator: start, drain and the gap to the next one in a stream."""


@dataclass(frozen=True, eq=False)
class Machine:
    """What the cost functions need of a device. Compared by identity, so that it is a cheap cache key.

    Attributes:
        flops: dense rate of 16-bit products, FLOP/s; ``flops8`` of those in fewer bits.
        bandwidth: of elementwise kernels, in 16-bit numbers' bytes/s: fp32 training moves twice as many.
        rates: measured products, empty where the machine was not calibrated.
    """

    family: DeviceFamily
    flops: float
    flops8: float
    bandwidth: float
    units: int
    floor: float
    constants: Constants
    rates: tuple[MatmulRate, ...] = field(default=(), repr=False)


def machine_of(
    cluster: Cluster,
    engine: str,
    dtype: NumberFormat,
    values: Constants | None = None,
    low: NumberFormat = "float8",
) -> Machine:
    """The machine of a cluster under an engine.

    Args:
        dtype: format of matrix products.
        values: constants in place of the stored ones, for fitting.
        low: format of products that run in fewer bits than ``dtype``.
    """
    device, measured = cluster.device, cluster.calibration
    values = values or constants(engine, device.family)
    reached = measured.memory_bandwidth or device.bandwidth * values.bandwidth
    peak = device.peak(dtype)
    return _machine(
        values,
        device.family,
        peak,
        max(peak, device.peak(low)),
        reached / (2 if dtype == "float32" else 1),
        tuple(rate for rate in measured.matmul if rate.number_format == dtype),
    )


@lru_cache(maxsize=256)
def _machine(
    values: Constants,
    family: DeviceFamily,
    flops: float,
    flops8: float,
    bandwidth: float,
    rates: tuple[MatmulRate, ...],
) -> Machine:
    floor = 0.0 if family == "cpu" else KERNEL_FLOOR
    return Machine(family, flops, flops8, bandwidth, UNITS[family], floor, values, rates)
