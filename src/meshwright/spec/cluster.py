"""Cluster: the devices that run a job, and the links between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from meshwright.spec.layout import Layout, MeshDim

GIB = 2**30
DeviceFamily = Literal["volta", "ampere", "ada", "hopper", "blackwell", "cdna3", "cdna4", "ascend", "cpu"]
NumberFormat = Literal["float32", "bfloat16", "float16", "float8", "float4"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, by its data sheet.

    Attributes:
        name: key in the catalogue, such as ``h100-80g``.
        family: generation, by which fitted efficiencies are looked up.
        memory_bytes: what one process can use, driver overhead taken off (79.1 GiB of an H100-80G).
        bandwidth: device memory, bytes/s.
        flops: dense matrix-product rate by number format, FLOP/s.
    """

    name: str
    title: str
    family: DeviceFamily
    memory_bytes: float
    bandwidth: float
    flops: Mapping[NumberFormat, float] = field(hash=False)
    source: str = ""

    def peak(self, number_format: NumberFormat) -> float:
        """FLOP/s of a format; a format the device lacks runs at the rate of the next wider one it has."""
        order: tuple[NumberFormat, ...] = ("float4", "float8", "bfloat16", "float16", "float32")
        for wider in order[order.index(number_format) :]:
            if wider in self.flops:
                return self.flops[wider]
        raise ValueError(f"device {self.name} has no {number_format} rate")


@dataclass(frozen=True, kw_only=True)
class Link:
    """A way between devices.

    Attributes:
        bandwidth: bytes/s that one device can send, with all devices of a node sending.
        latency: seconds that one step of a ring costs on top of its bytes.
        switch_reduction: the switch adds up, so that an all-reduce crosses the link once (NVLink SHARP).
        tree: the network runs all-reduce as a tree; without, as a ring whose steps grow with the ranks.
    """

    name: str
    bandwidth: float
    latency: float
    switch_reduction: bool = False
    tree: bool = True


@dataclass(frozen=True, kw_only=True)
class MatmulRate:
    """Measured rate of a product [m, k] x [k, n] in FLOP/s."""

    m: int
    k: int
    n: int
    number_format: NumberFormat
    flops: float


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """Measured time of one collective: ``message_bytes`` is the full (gathered or reduced) tensor."""

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
    ranks: int
    nodes: int
    message_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What ``meshwright bench --calibrate`` measured on a machine; replaces fitted efficiencies where present."""

    matmul: tuple[MatmulRate, ...] = ()
    memory_bandwidth: float | None = None
    collectives: tuple[CollectiveTime, ...] = ()

    def __hash__(self) -> int:
        # Predictions are cached by cluster: hashing a hundred measurements for each would cost more than the rest.
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.matmul, self.memory_bandwidth, self.collectives))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of equal devices.

    Attributes:
        intra: link between devices of one node.
        inter: link between nodes, per device (a node's network bandwidth divided by its devices).
        host_memory_bytes: main memory of one node, for offloading and loading.
    """

    device: Device
    num_devices: int
    devices_per_node: int
    intra: Link
    inter: Link
    host_memory_bytes: float = 2048 * GIB
    calibration: Calibration = field(default_factory=Calibration)

    def resized(self, num_devices: int) -> "Cluster":
        """The same kind of cluster with another number of devices."""
        return replace(self, num_devices=num_devices)

    @property
    def num_nodes(self) -> int:
        """Nodes, the last one perhaps not full."""
        return -(-self.num_devices // self.devices_per_node)


def group_on_nodes(layout: Layout, dims: tuple[MeshDim, ...], devices_per_node: int) -> tuple[int, int]:
    """(ranks, nodes) of the process group along some mesh dimensions that holds rank 0.

    Ranks fill nodes in order, so that the mesh order decides which links a group crosses.
    """
    offsets, stride = [0], 1
    for dim in reversed(layout.mesh_order):
        size = layout.size(dim)
        if dim in dims:
            offsets = [offset + stride * index for index in range(size) for offset in offsets]
        stride *= size
    return len(offsets), len({offset // devices_per_node for offset in offsets})
