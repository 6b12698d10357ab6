"""Collectives and FLOPs of a step, counted operator by operator."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops
from torch.utils.flop_counter import flop_registry

_c10d, _functional = torch.ops.c10d, torch.ops._c10d_functional
ATTENTION = frozenset(
    {
        torch.ops.aten._scaled_dot_product_flash_attention,
        torch.ops.aten._scaled_dot_product_flash_attention_backward,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
        torch.ops.aten._scaled_dot_product_efficient_attention,
        torch.ops.aten._scaled_dot_product_efficient_attention_backward,
    }
)
KINDS = {
    _c10d._allgather_base_: "all_gather",
    _functional.all_gather_into_tensor: "all_gather",
    _c10d._reduce_scatter_base_: "reduce_scatter",
    _functional.reduce_scatter_tensor: "reduce_scatter",
    _c10d.allreduce_: "all_reduce",
    _functional.all_reduce: "all_reduce",
    _c10d.send: "send",
    _c10d.recv_: "receive",
    _c10d.broadcast_: "broadcast",
}


@dataclass(frozen=True, kw_only=True)
class Message:
    """Collectives of one kind in one group.

    Attributes:
        ranks: of the group; of a send or receive, the other end.
        bytes: of the full (gathered or reduced) tensors, all calls together.
    """

    kind: str
    ranks: tuple[int, ...]
    count: int
    bytes: int

    def members(self, rank: int) -> list[int]:
        """All ranks that take part, ``rank``, whose message it is, among them."""
        return sorted({*self.ranks, rank})

    def nodes(self, rank: int, devices_per_node: int) -> int:
        """Nodes that they span when ranks fill nodes in order."""
        return len({member // devices_per_node for member in self.members(rank)})


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one rank sends and computes in one step.

    Attributes:
        flops: of matrix products and attention, recomputation included; attention counts the causal half.
    """

    messages: tuple[Message, ...]
    flops: int


class TrafficObserver:
    """Adds up while operators run; see `MemoryTracker`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._bytes: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._flops = 0

    def clear(self) -> None:
        """Begin anew."""
        self._counts.clear()
        self._bytes.clear()
        self._flops = 0

    def traffic(self) -> Traffic:
        """The sums, largest messages first."""
        messages = [
            Message(kind=kind, ranks=ranks, count=count, bytes=self._bytes[kind, ranks])
            for (kind, ranks), count in self._counts.items()
        ]
        return Traffic(messages=tuple(sorted(messages, key=lambda message: -message.bytes)), flops=self._flops)

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        packet = func._overloadpacket
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=result)
            self._flops += flops // 2 if packet in ATTENTION else flops
        elif func in collective_ops and packet in KINDS:
            self._count(func, KINDS[packet], args, result)

    def _count(self, func: Any, kind: str, args: tuple[Any, ...], result: Any) -> None:
        group = CollectiveOp.get_process_group(func, args)
        ranks = tuple(dist.get_process_group_ranks(group))
        if kind in ("send", "receive"):
            ranks = (ranks[args[2]],)
        key = (kind, ranks)
        self._counts[key] += 1
        self._bytes[key] += max(_sizes((args, result)), default=0)


def _sizes(value: Any) -> list[int]:
    if isinstance(value, Tensor):
        return [value.numel() * value.element_size()]
    if isinstance(value, (tuple, list)):
        return [size for item in value for size in _sizes(item)]
    return []
