"""Seconds of collectives against measured points, and how a cluster's own measurements replace them."""

from dataclasses import replace

import pytest

from meshwright.plan.time.collectives import links, seconds, sent_bytes
from meshwright.spec.catalogue import device_cluster
from meshwright.spec.cluster import Calibration, CollectiveTime

MIB = 2**20

# all_reduce on one A100 node, microseconds by MiB (vTrain trace/a100/AR_GPU*_1M_1024M_LUT, nccl-tests out of place).
A100 = {
    2: {1: 44.21, 2: 53.43, 4: 61.18, 8: 86.9, 16: 131.9, 32: 230, 64: 404.7, 128: 763.6, 256: 1455.8, 1024: 5442.8},
    4: {1: 51.4, 2: 55.74, 4: 77.32, 8: 116.8, 16: 179.6, 32: 284.2, 64: 543.8, 128: 998.6, 256: 1929, 1024: 7259.4},
    8: {1: 92.79, 2: 93.25, 4: 95.8, 8: 134.3, 16: 232.4, 32: 358.1, 64: 579.9, 128: 1162, 256: 2162.3, 1024: 8193},
}
# Bus GB/s of 256 MiB on nodes of 8 H100: (ranks, all_reduce, all_gather) of healthy node sets in the nanotron sweep
# (HF ultrascale playbook, jobs 13436293, 13436337, 13438461, 13438543, 13502272, 13502015, 14016386).
H100 = [
    (8, 458.2, 263.5),
    (16, 434.6, 224.1),
    (32, 193.4, 230.8),
    (64, 187.2, 181.7),
    (128, 205.4, 125.1),
    (256, 178.5, 77.8),
    (512, 185.6, 44.4),
]


def bus(collective, size, ranks, cluster):
    nodes = -(-ranks // cluster.devices_per_node)
    return sent_bytes(collective, size, ranks) / seconds(collective, size, ranks, nodes, cluster) / 1e9


def test_all_reduce_on_one_a100_node():
    cluster = device_cluster("a100-80g", 8)
    errors = [
        seconds("all_reduce", mib * MIB, ranks, 1, cluster) / (micro * 1e-6) - 1
        for ranks, points in A100.items()
        for mib, micro in points.items()
    ]
    assert sum(map(abs, errors)) / len(errors) < 0.07
    assert max(map(abs, errors)) < 0.25


@pytest.mark.parametrize(("ranks", "reduced", "gathered"), H100)
def test_large_messages_over_growing_numbers_of_nodes(ranks, reduced, gathered):
    cluster = device_cluster("h100", ranks)
    assert bus("all_gather", 256 * MIB, ranks, cluster) == pytest.approx(gathered, rel=0.15)
    # Two nodes reduce through the switch as well, which the tree of the model does not.
    assert bus("all_reduce", 256 * MIB, ranks, cluster) == pytest.approx(reduced, rel=0.35 if ranks == 16 else 0.2)


def test_a_switch_that_adds_up_halves_an_all_reduce():
    h100, cut = device_cluster("h100", 8), device_cluster("h100", 8)
    cut = replace(cut, intra=replace(cut.intra, switch_reduction=False))
    ratio = seconds("all_reduce", 2**30, 8, 1, cut) / seconds("all_reduce", 2**30, 8, 1, h100)
    assert ratio == pytest.approx((2 * 7 / 8) / (9 / 8), rel=0.02)


def test_slow_links_and_more_ranks_cost_more():
    nvlink, pcie = device_cluster("a100-80g", 64), device_cluster("a100-pcie-80g", 64)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
        inside = seconds(collective, 64 * MIB, 8, 1, nvlink)
        assert inside < seconds(collective, 64 * MIB, 8, 1, pcie), collective
        assert inside < seconds(collective, 64 * MIB, 8, 8, nvlink), collective
        assert seconds(collective, MIB, 8, 1, nvlink) < inside, collective


def test_members_on_one_node_bring_their_network_shares_together():
    cluster = device_cluster("a100-80g", 64)
    alone = seconds("all_gather", 1024 * MIB, 8, 8, cluster)
    four_each = seconds("all_gather", 1024 * MIB, 8, 2, cluster)
    assert 3.5 < alone / four_each < 4.2


def test_nothing_to_send_takes_no_time():
    cluster = device_cluster("h100", 8)
    assert seconds("all_reduce", 0, 8, 1, cluster) == 0
    assert seconds("all_reduce", MIB, 1, 1, cluster) == 0


def point(collective, ranks, nodes, size, time):
    return CollectiveTime(collective=collective, ranks=ranks, nodes=nodes, message_bytes=size, seconds=time)


def test_measured_sizes_replace_bandwidth_and_latency():
    """A process group over loopback: 0.4 ms at 64 KiB, 20 ms at 16 MiB; both come back, and what lies between."""
    measured = (point("all_reduce", 4, 1, 2**16, 4e-4), point("all_reduce", 4, 1, 2**24, 2e-2))
    cluster = replace(device_cluster("cpu", 4), calibration=Calibration(collectives=measured))
    for one in measured:
        assert seconds("all_reduce", one.message_bytes, 4, 1, cluster) == pytest.approx(one.seconds, rel=0.02)
    assert 4e-4 < seconds("all_reduce", 2**20, 4, 1, cluster) < 2e-2
    assert links(cluster, "all_gather") == (cluster.intra, cluster.inter)


def test_one_measured_size_on_sick_nodes_is_latency_of_a_ring():
    """Job 14016434 of the sweep: 13.39 and 6.41 GB/s on 512 ranks, where healthy node sets have 186 and 44."""
    size = 256 * MIB
    measured = tuple(
        point(kind, 512, 64, size, sent_bytes(kind, size, 512) / (gbs * 1e9))
        for kind, gbs in (("all_reduce", 13.39), ("all_gather", 6.41))
    )
    healthy = device_cluster("h100", 512)
    sick = replace(healthy, calibration=Calibration(collectives=measured))
    for one in measured:
        assert seconds(one.collective, size, 512, 64, sick) == pytest.approx(one.seconds, rel=0.01)
    assert not links(sick, "all_reduce")[1].tree
    assert 6e-5 < links(sick, "all_gather")[1].latency < 9e-5
    # Inside a node nothing was measured, and nothing changes.
    assert seconds("all_gather", size, 8, 1, sick) == seconds("all_gather", size, 8, 1, healthy)
    # A small message over two nodes waits for 15 slow steps instead of 511.
    assert seconds("all_gather", 16 * MIB, 16, 2, sick) < 20 * seconds("all_gather", 16 * MIB, 16, 2, healthy)
