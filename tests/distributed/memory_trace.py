"""What one real training step allocates, to the byte: the events of the CPU allocator on every rank."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from meshwright.data.loader import Batch
from meshwright.parallel.devices import KINDS
from meshwright.parallel.precision import formats
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec
from meshwright.train.build import build_state
from meshwright.train.step import TrainState, train_step

STEP = "measured step"


@dataclass(frozen=True)
class Allocation:
    """One event of the allocator: bytes gained (negative when freed), address, and the operators around it."""

    time: int
    size: int
    address: int
    where: tuple[str, ...]


@dataclass(frozen=True)
class StepMemory:
    """Live bytes of one rank in its second training step.

    Attributes:
        peak: most live bytes.
        before: live bytes when the step began.
        live: bytes at the peak by the operator that allocated them, largest first.
        moment: operators around the allocation that made the peak.
    """

    peak: int
    before: int
    live: tuple[tuple[str, int, int], ...]
    moment: tuple[str, ...]


def step_memory(spec: ModelSpec, layout: Layout, train: TrainSpec) -> StepMemory:
    """Trace this rank from an empty process over two steps; called on every rank."""
    kind = KINDS["cpu"]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        chosen = formats(train.precision, kind)
        state = build_state(spec, layout, train, kind=kind, device=torch.device("cpu"), chosen=chosen)
        batch = _batch(state, train)
        train_step(state, batch, 1e-3)
        with record_function(STEP):
            train_step(state, batch, 1e-3)
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    events = sorted(allocations(roots, ()), key=lambda event: event.time)
    dist.barrier()
    return _second_step(events)


def _batch(state: TrainState, train: TrainSpec) -> Batch:
    sequences = train.batch.micro_batch_size * train.batch.micro_batch_num
    generator = torch.Generator().manual_seed(state.mesh.zero_rank)
    ids = torch.randint(0, state.model.spec.vocab_size, (sequences, train.seq_length), generator=generator)
    positions = torch.arange(train.seq_length).expand_as(ids) % 100 if train.isolate_documents else None
    return Batch(tokens=ids, labels=ids.clone(), positions=positions)


def allocations(nodes: Any, where: tuple[str, ...]) -> Iterator[Allocation]:
    for node in nodes:
        if "Allocation" in str(node.tag):
            fields = node.extra_fields
            yield Allocation(node.start_time_ns, fields.alloc_size, fields.ptr, where)
        yield from allocations(node.children, (*where, node.name))


def _second_step(events: list[Allocation]) -> StepMemory:
    live: dict[int, Allocation] = {}
    total, peak, before, at_peak, moment = 0, -1, -1, {}, ()
    for event in _with_unseen_frees(events):
        inside = STEP in event.where
        if inside and before < 0:
            before = total
        if event.size > 0:
            live[event.address] = event
        else:
            live.pop(event.address)
        total += event.size
        if inside and total > peak:
            peak, at_peak, moment = total, dict(live), event.where
    return StepMemory(peak, before, _by_operator(at_peak.values()), moment)


def _with_unseen_frees(events: list[Allocation]) -> Iterator[Allocation]:
    """The events, and the frees that a thread of gloo made because it dropped a message last: no profiler sees them.

    Those are placed at the end of the collective, or of the autograd function around it.
    """
    unseen = _never_freed(events)
    waiting: list[Allocation] = []
    for event in events:
        for copy in [copy for copy in waiting if copy.where != event.where[: len(copy.where)]]:
            waiting.remove(copy)
            yield Allocation(event.time, -copy.size, copy.address, event.where)
        yield event
        if event in unseen and (message := _message(event.where)):
            waiting.append(Allocation(event.time, event.size, event.address, message))


def _never_freed(events: list[Allocation]) -> set[Allocation]:
    live: dict[int, Allocation] = {}
    unseen: set[Allocation] = set()
    for event in events:
        if event.size > 0:
            if event.address in live:
                unseen.add(live[event.address])
            live[event.address] = event
        else:
            live.pop(event.address)
    return unseen | set(live.values())


def _message(where: tuple[str, ...]) -> tuple[str, ...]:
    """The operators around the collective that an allocation belongs to; empty where it belongs to none."""
    for depth, name in enumerate(where):
        if name.startswith("_c10d_functional::"):
            return where[:depth]
        if name.startswith("c10d::"):
            return where[: depth + 1]
    return ()


def _by_operator(allocations: Iterable[Allocation]) -> tuple[tuple[str, int, int], ...]:
    sizes: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for event in allocations:
        name = f"{event.size} {' > '.join(event.where[-4:])}" + ("" if STEP in event.where else " (before)")
        sizes[name] += event.size
        numbers[name] += 1
    return tuple((name, numbers[name], size) for name, size in sizes.most_common())
