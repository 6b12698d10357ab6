"""Seconds of one collective from its bytes, its group and the links that the group crosses.

Model, for a group of ``ranks`` that lie ``k`` to a node on ``nodes`` nodes:

* Bytes ``W`` that each rank sends in the bandwidth-optimal algorithm (NCCL's rings; busbw convention of
  nccl-tests): ``(r-1)/r S`` for all_gather, reduce_scatter and all_to_all, twice that for all_reduce, and
  ``(r+1)/r S`` for all_reduce inside a node whose switch adds up (NVLink SHARP: each rank sends its tensor once
  and broadcasts its share once).
* Bandwidth ``B`` of the narrowest link in the ring: the intra-node link, or the ``k`` network shares of the
  members of a node, times `EFFICIENCY`.
* Latency: `LAUNCH` once, and a link's ``latency`` per step of the ring; across nodes every step waits for the
  network, unless the share of a rank is smaller than a `SLICE`.
* Pipelining: a ring moves a message in chunks; with the best chunk the time is ``(sqrt(W/B) + sqrt(FILL))^2``, so
  that efficiency grows with size and half of it is reached at ``W/B`` of a few `FILL`.
* all_reduce across nodes runs as a tree where the network has one: reduce inside the node, ``log2`` steps between
  nodes, broadcast inside.

The three constants are held against 77 all-reduce points of nccl-tests on one A100 node, 1 MiB to 1 GiB on 2 to 8
devices (vTrain, mean error 5 %), and against the 256 MB points of the nanotron sweep's healthy node sets on 8 to
512 H100. Where a cluster carries measured collectives, its links are fitted to those first.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from meshwright.spec.cluster import Calibration, Cluster, CollectiveTime, Link

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

EFFICIENCY = 0.77
"""Share of a link's bandwidth that a large ring message reaches (protocol, headers)."""
LAUNCH = 25e-6
"""Seconds from the call to the first byte."""
FILL = 3e-6
"""Seconds that fill the pipeline of chunks."""
SLICE = 2**19
"""Bytes in which NCCL's Simple protocol moves (a 4 MiB buffer in 8 steps)."""
TREE_SHARE = 0.6
"""Bandwidth of a tree between nodes over that of a ring: a node's uplink carries both directions of two trees."""
FIT_ROUNDS, BISECTIONS = 8, 60
MIN_BANDWIDTH, MAX_BANDWIDTH = 1e6, 1e13


def seconds(collective: Collective, message_bytes: float, ranks: int, nodes: int, cluster: Cluster) -> float:
    """Time of one collective, s.

    Args:
        message_bytes: of the full tensor: gathered, reduced, or all that one rank exchanges or sends.
        ranks: in the group; for ``send`` only ``nodes`` counts.
        nodes: that the group lies on, see `meshwright.spec.cluster.group_on_nodes`.
    """
    if ranks <= 1 or message_bytes <= 0:
        return 0.0
    intra, inter = links(cluster, collective)
    return _seconds(collective, float(message_bytes), ranks, nodes, intra, inter)


def sent_bytes(collective: Collective, message_bytes: float, ranks: int) -> float:
    """Bytes that one rank sends in a ring (the numerator of nccl-tests' bus bandwidth)."""
    if ranks <= 1:
        return 0.0
    if collective == "send":
        return message_bytes
    return message_bytes * (ranks - 1) / ranks * (2 if collective == "all_reduce" else 1)


def links(cluster: Cluster, collective: Collective) -> tuple[Link, Link]:
    """The intra-node and the inter-node link, fitted to the cluster's measured collectives where it has any."""
    if not cluster.calibration.collectives:
        return cluster.intra, cluster.inter
    return _fitted(cluster.calibration, collective, cluster.intra, cluster.inter)


def _seconds(collective: Collective, size: float, ranks: int, nodes: int, intra: Link, inter: Link) -> float:
    if collective == "send":
        link = inter if nodes > 1 else intra
        return LAUNCH + link.latency + _moved(size, link.bandwidth)
    if nodes <= 1:
        return _inside(collective, size, ranks, intra)
    per_node = max(1, ranks // nodes)
    if collective == "all_to_all":
        return _exchange(size, ranks, per_node, intra, inter)
    if collective == "all_reduce" and inter.tree:
        return _tree(size, ranks, nodes, per_node, intra, inter)
    narrow = _narrow(per_node, intra, inter)
    steps = (ranks - 1) * inter.latency
    if size / ranks < SLICE:
        # Low-latency protocols do not wait: a step costs what its own link does.
        steps = nodes * inter.latency + (ranks - nodes) * intra.latency
    return LAUNCH + steps + _moved(sent_bytes(collective, size, ranks), narrow)


def _inside(collective: Collective, size: float, ranks: int, link: Link) -> float:
    sent = sent_bytes(collective, size, ranks)
    if collective == "all_reduce" and link.switch_reduction and ranks > 2:
        sent = size * (ranks + 1) / ranks
    return LAUNCH + (ranks - 1) * link.latency + _moved(sent, link.bandwidth)


def _exchange(size: float, ranks: int, per_node: int, intra: Link, inter: Link) -> float:
    """all_to_all: what stays in the node and what leaves it travel at the same time."""
    leaving = _moved(size * (ranks - per_node) / ranks, inter.bandwidth)
    staying = _moved(size * (per_node - 1) / ranks, intra.bandwidth)
    return LAUNCH + inter.latency * math.log2(ranks) + max(leaving, staying)


def _tree(size: float, ranks: int, nodes: int, per_node: int, intra: Link, inter: Link) -> float:
    sent = 2 * (nodes - 1) / nodes * size
    steps = 2 * math.ceil(math.log2(nodes)) * inter.latency + 2 * (per_node - 1) * intra.latency
    return LAUNCH + steps + _moved(sent, TREE_SHARE * _narrow(per_node, intra, inter))


def _narrow(per_node: int, intra: Link, inter: Link) -> float:
    """Bandwidth of the narrowest hop: each member of a node brings its network share."""
    network = per_node * inter.bandwidth
    return network if per_node == 1 else min(intra.bandwidth, network)


def _moved(sent: float, bandwidth: float) -> float:
    return (math.sqrt(max(0.0, sent) / (EFFICIENCY * bandwidth)) + math.sqrt(FILL)) ** 2


@lru_cache(maxsize=8192)
def _fitted(calibration: Calibration, collective: Collective, intra: Link, inter: Link) -> tuple[Link, Link]:
    points = [point for point in calibration.collectives if point.collective == collective]
    inside = [point for point in points if point.nodes == 1]
    across = [point for point in points if point.nodes > 1]
    intra = _fit(inside, intra, intra)
    return intra, _fit(across, intra, inter)


def _fit(points: list[CollectiveTime], intra: Link, link: Link) -> Link:
    """The link with the bandwidth and latency that reproduce measured points.

    The largest message sets the bandwidth and the smallest the latency, in turns, as each dominates its own end.
    A single size cannot tell them apart: time that the link does not explain is then latency, and where the link
    is too slow its bandwidth rises up to its full rate before its latency falls. A tree that would take less than
    half of what was measured is not what runs.
    """
    if not points:
        return link
    small = min(points, key=lambda point: point.message_bytes)
    large = max(points, key=lambda point: point.message_bytes)
    if large.nodes > 1 and large.collective == "all_reduce" and 2 * _time(large, intra, link) < large.seconds:
        link = replace(link, tree=False)
    if large.message_bytes == small.message_bytes:
        if _time(large, intra, link) > large.seconds:
            link = _solve(link, "bandwidth", large, intra, link.bandwidth / EFFICIENCY)
        return _solve(link, "latency", large, intra)
    for _ in range(FIT_ROUNDS):
        link = _solve(link, "bandwidth", large, intra)
        link = _solve(link, "latency", small, intra)
    return link


def _solve(
    link: Link,
    field: Literal["bandwidth", "latency"],
    point: CollectiveTime,
    intra: Link,
    most: float = MAX_BANDWIDTH,
) -> Link:
    """The link with one field set so that the model meets a point; at the end of its range where it cannot."""
    low, high = (0.0, 10.0) if field == "latency" else (MIN_BANDWIDTH, most)
    slower_when_larger = field == "latency"
    for _ in range(BISECTIONS):
        middle = (low + high) / 2 if field == "latency" else math.sqrt(low * high)
        trial = _with(link, field, middle)
        if (_time(point, intra, trial) > point.seconds) == slower_when_larger:
            high = middle
        else:
            low = middle
    return _with(link, field, low)


def _with(link: Link, field: Literal["bandwidth", "latency"], value: float) -> Link:
    return replace(link, bandwidth=value) if field == "bandwidth" else replace(link, latency=value)


def _time(point: CollectiveTime, intra: Link, link: Link) -> float:
    ends = (link, link) if point.nodes == 1 else (intra, link)
    return _seconds(point.collective, point.message_bytes, point.ranks, point.nodes, *ends)
