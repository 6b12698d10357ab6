"""The clusters that published measurements ran on."""

import re
from dataclasses import replace

from benchmarks.published.rows import Row, Skip

from meshwright.plan.time.collectives import Collective, sent_bytes
from meshwright.spec.catalogue import device_cluster, hardware
from meshwright.spec.cluster import Calibration, Cluster, CollectiveTime

# First match wins; names as the publications write them.
DEVICES = (
    ("H100-SXM 96GB", "h100-96g"),
    ("H100-SXM-96GB", "h100-96g"),
    ("H100", "h100-80g"),
    ("H800", "h800-80g"),
    ("H200", "h200-141g"),
    ("H20", "h20-96g"),
    ("GB300", "gb300"),
    ("GB200", "gb200"),
    ("B300", "b300"),
    ("B200", "b200"),
    ("A100-SXM-40GB", "a100-40g"),
    ("A100-40GB", "a100-40g"),
    ("A100 40", "a100-40g"),
    ("A100", "a100-80g"),
    ("A800", "a800-80g"),
    ("A10G", "a10g"),
    ("910B", "ascend-910b-64g"),
    ("910C", "ascend-910c-64g"),
    ("RTX 4090", "rtx-4090"),
    ("A6000", "rtx-a6000"),
    ("L40S", "l40s"),
    ("V100", "v100-32g"),
    ("RTX 3090", "rtx-3090"),
    ("MI300X", "mi300x"),
)
PCIE = ("a100-pcie-80g", "h100-pcie-80g")
# The same name with another memory size, where a column tells it apart.
SIZES = {
    ("a100-80g", 40): "a100-40g",
    ("h100-80g", 94): "h100-nvl-94g",
    ("h100-80g", 96): "h100-96g",
    ("ascend-910b-64g", 32): "ascend-910a-32g",
}
"""Bytes/s per device between nodes, where the publication says so; otherwise the catalogue's typical network."""
NODE_NETWORK = {
    "vtrain_a100": 800e9 / 8,
    "bigscience_a100": 400e9 / 8,
    "internevo": 400e9 / 8,
    "mosaic_llmfoundry": 1600e9 / 8,
    "nanotron_ultrascale": 3200e9 / 8,
}


def cluster_of(row: Row) -> Cluster:
    """Devices and links of a row. Raises Skip for a device that is not in the catalogue."""
    gpu, name = row.text("gpu"), _device_name(row)
    try:
        # NVL72: rows count the devices of a host, but NVLink joins 18 hosts.
        per_node = None if hardware(name).devices_per_node > 8 else row.whole("gpus_per_node", 8)
        cluster = device_cluster(name, row.whole("n_gpus"), per_node)
    except ValueError as error:
        raise Skip(f"device not in the catalogue: {name}") from error
    cluster = replace(cluster, calibration=Calibration(collectives=_node_set(row, cluster)))
    node = NODE_NETWORK.get(row.source)
    if node is None or (row.source == "mosaic_llmfoundry" and "A100" not in gpu):
        return cluster
    return replace(cluster, inter=replace(cluster.inter, bandwidth=node / cluster.devices_per_node))


def _device_name(row: Row) -> str:
    gpu = row.text("gpu")
    name = next((name for part, name in DEVICES if part.lower() in gpu.lower()), None)
    if name is None:
        raise Skip(f"device not in the catalogue: {gpu or 'not stated'}")
    if "pcie" in gpu.lower() and f"{name.partition('-')[0]}-pcie-80g" in PCIE:
        name = f"{name.partition('-')[0]}-pcie-80g"
    memory = row.number("gpu_mem_gb")
    return SIZES.get((name, int(memory)), name) if memory else name


NODE_SET = re.compile(r"node-set 256MB bw GB/s AR=([\d.]+) AG=([\d.]+) RS=([\d.]+)")
NODE_SET_BYTES = 256 * 2**20


def _node_set(row: Row, cluster: Cluster) -> tuple[CollectiveTime, ...]:
    """Collectives that the sweep timed on a job's own nodes before it trained (bus bandwidth over all its ranks)."""
    found = NODE_SET.search(row.text("notes"))
    if found is None or cluster.num_devices < 2:
        return ()
    kinds: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter")
    return tuple(
        CollectiveTime(
            collective=kind,
            ranks=cluster.num_devices,
            nodes=cluster.num_nodes,
            message_bytes=NODE_SET_BYTES,
            seconds=sent_bytes(kind, NODE_SET_BYTES, cluster.num_devices) / (float(bandwidth) * 1e9),
        )
        for kind, bandwidth in zip(kinds, found.groups(), strict=True)
    )
