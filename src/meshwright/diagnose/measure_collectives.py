"""Times collectives between ranks by size: all of the world, and those of one node."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from meshwright.diagnose.measure import synchronize
from meshwright.parallel.devices import DeviceKind
from meshwright.plan.time.collectives import Collective as CollectiveKind
from meshwright.spec.cluster import CollectiveTime

SIZES = {"cpu": (2**16, 2**20, 2**24)}
ACCELERATOR_SIZES = (2**18, 2**22, 2**25, 2**28)
"""Bytes of the full tensor."""
LEAST_CALLS, MOST_CALLS = 3, 100

Call = Callable[[], object]

# torch 2.13 renames the two; 2.11 has the old names only.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """A process group and the nodes that it lies on."""

    group: dist.ProcessGroup
    ranks: int
    nodes: int


def groups() -> list[RankGroup]:
    """The ranks of this node and, where there are several nodes, all ranks. Called on every rank."""
    world, local = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    found = []
    if local > 1:
        mine, _ = dist.new_subgroups(group_size=local)
        found.append(RankGroup(group=mine, ranks=local, nodes=1))
    if world > local:
        assert dist.group.WORLD is not None
        found.append(RankGroup(group=dist.group.WORLD, ranks=world, nodes=world // local))
    return found


def collective_times(kind: DeviceKind, device: torch.device, budget: float) -> Iterator[CollectiveTime]:
    """Every collective at every size in every group, within about ``budget`` seconds. Called on every rank."""
    found, sizes = groups(), SIZES.get(kind.name, ACCELERATOR_SIZES)
    share = budget / max(1, len(found) * len(sizes) * len(_CALLS))
    for where in found:
        for size in sizes:
            for name, make in _CALLS.items():
                # Divisible by the ranks in fp32 elements.
                full = size // (4 * where.ranks) * 4 * where.ranks
                seconds = _seconds(make(full, where, device), kind, where, share)
                yield CollectiveTime(
                    collective=name, ranks=where.ranks, nodes=where.nodes, message_bytes=full, seconds=seconds
                )


def _seconds(call: Call, kind: DeviceKind, where: RankGroup, budget: float) -> float:
    """Mean seconds of a call on the slowest rank; all ranks make the same number of calls."""
    call()
    once = _slowest(_timed(call, kind, where, 1), kind, where)
    times = int(max(LEAST_CALLS, min(MOST_CALLS, budget / max(once, 1e-7))))
    return _slowest(_timed(call, kind, where, times), kind, where)


def _timed(call: Call, kind: DeviceKind, where: RankGroup, times: int) -> float:
    synchronize(kind)
    dist.barrier(where.group)
    began = time.perf_counter()
    for _ in range(times):
        call()
    synchronize(kind)
    return (time.perf_counter() - began) / times


def _slowest(seconds: float, kind: DeviceKind, where: RankGroup) -> float:
    value = torch.tensor([seconds], dtype=torch.float32, device="cpu" if kind.name == "cpu" else kind.name)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=where.group)
    return float(value.item())


def _all_reduce(size: int, where: RankGroup, device: torch.device) -> Call:
    tensor = torch.ones(size // 4, device=device)
    return lambda: dist.all_reduce(tensor, group=where.group)


def _all_gather(size: int, where: RankGroup, device: torch.device) -> Call:
    full = torch.ones(size // 4, device=device)
    part = torch.ones(size // 4 // where.ranks, device=device)
    return lambda: _gather(full, part, group=where.group)


def _reduce_scatter(size: int, where: RankGroup, device: torch.device) -> Call:
    full = torch.ones(size // 4, device=device)
    part = torch.ones(size // 4 // where.ranks, device=device)
    return lambda: _scatter(part, full, group=where.group)


def _all_to_all(size: int, where: RankGroup, device: torch.device) -> Call:
    before, after = (torch.ones(size // 4, device=device) for _ in range(2))
    return lambda: dist.all_to_all_single(after, before, group=where.group)


def _send(size: int, where: RankGroup, device: torch.device) -> Call:
    """The tensor travels one rank on, as at a stage boundary."""
    before, after = (torch.ones(size // 4, device=device) for _ in range(2))
    ranks = dist.get_process_group_ranks(where.group)
    at = ranks.index(dist.get_rank())
    ahead, behind = ranks[(at + 1) % len(ranks)], ranks[at - 1]

    def shift() -> None:
        sends = [
            dist.P2POp(dist.isend, before, ahead, group=where.group),
            dist.P2POp(dist.irecv, after, behind, group=where.group),
        ]
        for work in dist.batch_isend_irecv(sends):
            work.wait()

    return shift


_CALLS: dict[CollectiveKind, Callable[[int, RankGroup, torch.device], Call]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send": _send,
}
