"""Seconds of single kernels: matrix products, and everything that memory bandwidth bounds."""

import math
from functools import lru_cache

from meshwright.plan.time.machine import Machine

# Output tiles that matrix-product libraries choose from (rows, columns), and the share of the large tile's rate that
# each reaches: a smaller tile reads more operand bytes per product (NVIDIA, "Matrix Multiplication Background", table
# of tile efficiencies).
TILES = ((256, 128, 1.0), (128, 128, 0.92), (128, 64, 0.77), (64, 64, 0.6))
RAMP = 320
"""Inner-dimension steps' worth of time that a tile spends on filling its pipeline and writing its result, so that a
product of depth k reaches k / (k + RAMP) of the rate. Of 96, 320, 500 and 800, 320 fits A100, H100 and B200 best."""
LAST_WAVE = 0.5
"""Share of an incomplete last wave that is lost: libraries try more tile shapes than are listed here, and keep the one
whose waves fill best."""
ALIGNED, UNALIGNED = 8, 0.35
"""16-bit numbers that rows have to be a multiple of for tensor cores to run at full rate, and the share of the rate
they reach otherwise (NVIDIA, "Matrix Multiplication Background", figure 2; logits over 50257 columns in vTrain)."""


@lru_cache(maxsize=65536)
def matmul(
    machine: Machine, m: int, n: int, k: int, batch: int = 1, float8: bool = False, accumulate: bool = False
) -> float:
    """Seconds of ``batch`` products [m, k] x [k, n] in one launch.

    The slower of two limits: tiles of the output dealt out to the multiprocessors in waves, each running k + RAMP
    steps; and operand and result bytes at memory bandwidth.

    Args:
        float8: operands in 8 bits (or 4, where the job says so).
        accumulate: the result is added to an fp32 buffer (Megatron's fused gradient accumulation).
    """
    if m <= 0 or n <= 0 or k <= 0 or batch <= 0:
        return 0.0
    result_bytes = 8.0 if accumulate else 2.0
    operands = float(m) * k + float(k) * n
    moved = batch * (operands * (1.0 if float8 else 2.0) + float(m) * n * result_bytes)
    seconds = max(_product_seconds(machine, m, n, k, batch, float8), moved / machine.bandwidth)
    return seconds + machine.floor


def streamed(machine: Machine, moved_bytes: float, kernels: float = 1) -> float:
    """Seconds of ``kernels`` memory-bound kernels that together read and write ``moved_bytes``."""
    return moved_bytes / machine.bandwidth + kernels * machine.floor


def _product_seconds(machine: Machine, m: int, n: int, k: int, batch: int, float8: bool) -> float:
    peak = machine.flops8 if float8 else machine.flops
    if machine.rates:
        return 2.0 * batch * m * n * k / _measured_rate(machine, m, n, k) * (machine.flops / peak)
    per_unit = peak * machine.constants.matmul / machine.units
    if n % ALIGNED or k % ALIGNED:
        per_unit *= UNALIGNED
    return min(
        _waves(machine.units, m, n, k, batch, rows, columns) * 2.0 * rows * columns
        / (per_unit * share)
        for rows, columns, share in TILES
    )  # fmt: skip


def _waves(units: int, m: int, n: int, k: int, batch: int, rows: int, columns: int) -> float:
    """Inner-dimension steps from first to last wave. Deep products with few tiles are split along k."""
    tiles = batch * math.ceil(m / rows) * math.ceil(n / columns)
    if tiles >= units:
        full = tiles / units
        return (full + LAST_WAVE * (math.ceil(full) - full)) * (k + RAMP)
    parts = max(1, min(units // tiles, k // 1024))
    return k / parts + RAMP * (1 if parts == 1 else 2)


def _measured_rate(machine: Machine, m: int, n: int, k: int) -> float:
    """FLOP/s between measured shapes, weighted by closeness in log m, log n, log k."""
    weights = rates = 0.0
    for rate in machine.rates:
        distance = sum(math.log(wanted / measured) ** 2 for wanted, measured in ((m, rate.m), (n, rate.n), (k, rate.k)))
        weight = 1.0 / (distance + 0.05) ** 2
        weights += weight
        rates += weight * math.log(rate.flops)
    return math.exp(rates / weights)
