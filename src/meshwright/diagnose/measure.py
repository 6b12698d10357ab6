"""Measures the device of this rank: matrix products by shape and format, and memory bandwidth."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.parallel.devices import TORCH_DTYPES, DeviceKind
from meshwright.spec.training import ComputeDtype

Shape = tuple[int, int, int]

CUBES: tuple[Shape, ...] = tuple((size, size, size) for size in (256, 512, 1024, 2048, 4096, 8192))
LAYERS: tuple[Shape, ...] = (
    (512, 1024, 4096),
    (512, 4096, 1024),
    (2048, 2048, 8192),
    (2048, 8192, 2048),
    (4096, 4096, 1024),
    (4096, 4096, 14336),
    (4096, 14336, 4096),
    (8192, 8192, 28672),
)
"""(m, k, n) of products [m, k] x [k, n]: m tokens through projections of 1, 2, 7 and 70 billion parameter models."""
STREAM_BYTES = {"cpu": 64 * 2**20}
ACCELERATOR_STREAM_BYTES = 2**30
"""Per tensor: far beyond every cache."""
LEAST_CALLS = 3


@dataclass(frozen=True)
class Product:
    """A measured product: median seconds of one."""

    m: int
    k: int
    n: int
    number_format: ComputeDtype
    seconds: float

    @property
    def flops(self) -> float:
        """FLOP/s."""
        return 2.0 * self.m * self.k * self.n / self.seconds


def synchronize(kind: DeviceKind) -> None:
    """Wait until the device has done what it was given."""
    if kind.name != "cpu":
        torch.accelerator.synchronize()


def products(
    kind: DeviceKind, device: torch.device, formats: tuple[ComputeDtype, ...], budget: float
) -> Iterator[Product]:
    """Products from small to large in each format, within about ``budget`` seconds.

    A format ends early when its next product would take more than its share of what is left.
    """
    shapes = sorted({*CUBES, *LAYERS}, key=lambda shape: shape[0] * shape[1] * shape[2])
    for number_format in formats:
        left, flops = budget / len(formats), 0.0
        for done, (m, k, n) in enumerate(shapes):
            share = left / (len(shapes) - done)
            if flops and (LEAST_CALLS + 1) * 2.0 * m * k * n / flops > max(share, left / 2):
                break
            began = time.perf_counter()
            found = _product(kind, device, number_format, (m, k, n), share)
            left, flops = max(0.0, left - (time.perf_counter() - began)), found.flops
            yield found


def _product(
    kind: DeviceKind, device: torch.device, number_format: ComputeDtype, shape: Shape, budget: float
) -> Product:
    m, k, n = shape
    dtype = TORCH_DTYPES[number_format]
    a, b = _filled((m, k), dtype, device), _filled((k, n), dtype, device)
    out = torch.empty((m, n), dtype=dtype, device=device)
    seconds = median_seconds(lambda: torch.mm(a, b, out=out), kind, budget)
    return Product(m=m, k=k, n=n, number_format=number_format, seconds=seconds)


def _filled(size: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Not zeros: power management makes products of zeros faster than any real ones.
    return torch.randn(size, device=device).to(dtype)


def memory_bandwidth(kind: DeviceKind, device: torch.device, budget: float) -> float:
    """Bytes/s that an elementwise sum of two tensors reads and writes."""
    elements = STREAM_BYTES.get(kind.name, ACCELERATOR_STREAM_BYTES) // 4
    a, b, out = (torch.ones(elements, device=device) for _ in range(3))
    return 12.0 * elements / median_seconds(lambda: torch.add(a, b, out=out), kind, budget)


def median_seconds(call: Callable[[], object], kind: DeviceKind, budget: float) -> float:
    """Median seconds of a call over about ``budget`` seconds, three calls at least, after one to warm up."""
    call()
    synchronize(kind)
    batch = _calls_per_sample(call, kind)
    samples: list[float] = []
    deadline = time.perf_counter() + budget
    while len(samples) < LEAST_CALLS or (time.perf_counter() < deadline and len(samples) < 1000):
        began = time.perf_counter()
        for _ in range(batch):
            call()
        synchronize(kind)
        samples.append((time.perf_counter() - began) / batch)
    return statistics.median(samples)


def _calls_per_sample(call: Callable[[], object], kind: DeviceKind) -> int:
    """Calls between two waits: an accelerator's queue must not run dry between short kernels."""
    if kind.name == "cpu":
        return 1
    began = time.perf_counter()
    call()
    synchronize(kind)
    return max(1, min(200, int(5e-3 / (time.perf_counter() - began))))
