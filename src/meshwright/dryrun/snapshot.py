"""Allocations of a dry run as a snapshot for PyTorch's memory viewer.

The file has the form of one that ``torch.cuda.memory._dump_snapshot`` writes; https://docs.pytorch.org/memory_viz and
``python -m torch.cuda._memory_viz`` open it. Where a stack of calls would stand, it names operator, module,
micro-batch, phase and category.
"""

import pickle
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.dryrun.allocator import Block, CachingAllocator, requests
from meshwright.dryrun.analysis import CATEGORIES, Category, category
from meshwright.dryrun.tape import Moment, Record, Tape

PROTOCOL = 4
"""Of pickle: the newest that the viewer reads."""
NO_CATEGORY = "unknown"
"""Of segments. The viewer fails on a trace with categories that lacks this one."""
SHOWN: tuple[Category, ...] = ("inputs and tables", *(name for name in CATEGORIES if name != "inputs and tables"))
"""Order of what lives when the step begins. The viewer has ten colours, in order of appearance: a twelfth category
shares that of the second, the smallest."""
Frames = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class _Segment:
    address: int
    size: int
    stream: int
    small: bool
    frames: Frames


@dataclass(frozen=True, eq=False)
class _Held:
    block: Block
    size: int
    record: Record


def write_snapshot(tape: Tape, path: Path) -> None:
    """Write the snapshot of a tape's last step. Raises `OSError`."""
    with path.open("wb") as file:
        pickle.dump(snapshot(tape), file, protocol=PROTOCOL)


def snapshot(tape: Tape) -> dict[str, Any]:
    """The last step of a tape in native segments, sizes in bytes.

    The trace begins with all that lives when the step begins, as if it were allocated then; ``segments`` is how the
    step ends. ``time_us`` is the number of the event on the tape: a dry run has no clock.
    """
    recorder = _Recorder(tape)
    recorder.run()
    return {"segments": [*recorder.segments()], "device_traces": [recorder.trace]}


class _Recorder:
    """Replays a tape and writes down the last step."""

    def __init__(self, tape: Tape) -> None:
        self.trace: list[dict[str, Any]] = []
        self._tape, self._step = tape, len(tape.starts) - 1
        self._allocator = CachingAllocator()
        self._segments: list[_Segment] = []
        self._held: dict[int, _Held] = {}
        self._frames: dict[tuple[str, ...], Frames] = {}

    def run(self) -> None:
        """Fill the trace."""
        start = self._tape.starts[-1]
        begun = False
        for index, record, size in requests(self._tape):
            if index >= start and not begun:
                begun = True
                self._note_state(start)
            if size:
                self._allocate(record, size, index, noted=begun)
            else:
                self._free(record, index, noted=begun)

    def segments(self) -> Iterator[dict[str, Any]]:
        """How the run leaves them, by address."""
        held = sorted(self._held.values(), key=lambda item: item.block.address)
        addresses = [item.block.address for item in held]
        for segment in self._segments:
            ends = (segment.address, segment.address + segment.size)
            inside = held[bisect_left(addresses, ends[0]) : bisect_left(addresses, ends[1])]
            taken = sum(item.block.size for item in inside)
            yield {
                "device": 0,
                "address": segment.address,
                "total_size": segment.size,
                "allocated_size": taken,
                "active_size": taken,
                "requested_size": sum(item.size for item in inside),
                "stream": segment.stream,
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": segment.frames,
                "blocks": [*self._blocks(segment, inside)],
            }

    def _blocks(self, segment: _Segment, inside: list[_Held]) -> Iterator[dict[str, Any]]:
        address = segment.address
        for item in inside:
            if item.block.address > address:
                yield _free_block(address, item.block.address - address)
            yield {
                "address": item.block.address,
                "size": item.block.size,
                "requested_size": item.size,
                "state": "active_allocated",
                "frames": self._place(item.record, item.record.born),
            }
            address = item.block.address + item.block.size
        if address < segment.address + segment.size:
            yield _free_block(address, segment.address + segment.size - address)

    def _note_state(self, time: int) -> None:
        for segment in self._segments:
            self._note("segment_alloc", segment.address, segment.size, segment.stream, time, segment.frames)
        for item in sorted(self._held.values(), key=lambda item: SHOWN.index(self._category(item.record))):
            self._note_storage("alloc", item, time, item.record.born)

    def _allocate(self, record: Record, size: int, index: int, *, noted: bool) -> None:
        before = self._allocator.reserved
        block = self._allocator.allocate(record.number, size, record.stream)
        held = self._held[record.number] = _Held(block, size, record)
        moment = self._tape.events[index].moment
        if grown := self._allocator.reserved - before:
            segment = _Segment(block.address, grown, record.stream, block.pool.small, self._place(record, moment))
            self._segments.append(segment)
            if noted:
                self._note("segment_alloc", segment.address, grown, segment.stream, index, segment.frames)
        if noted:
            self._note_storage("alloc", held, index, moment)

    def _free(self, record: Record, index: int, *, noted: bool) -> None:
        held = self._held.pop(record.number)
        if noted:
            moment = self._tape.events[index].moment
            self._note_storage("free_requested", held, index, moment)
            self._note_storage("free_completed", held, index, moment)
        self._allocator.free(record.number)

    def _note_storage(self, action: str, held: _Held, time: int, moment: Moment) -> None:
        record = held.record
        frames, name = self._place(record, moment), self._category(record)
        self._note(action, held.block.address, held.size, record.stream, time, frames, name)

    def _note(
        self, action: str, address: int, size: int, stream: int, time: int, frames: Frames, name: str = NO_CATEGORY
    ) -> None:
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": time,
                "frames": frames,
                "category": name,
            }
        )

    def _category(self, record: Record) -> Category:
        return category(record, self._step)

    def _place(self, record: Record, moment: Moment) -> Frames:
        """Where a storage was at a moment, as a stack: innermost first. Equal places share one list."""
        micro_batch = str(moment.micro_batch) if moment.micro_batch >= 0 else "none"
        phase = f"{moment.phase} (recomputing)" if moment.recomputing else moment.phase
        module = record.owner or moment.module or "outside the model"
        key = (moment.operator or "release", module, micro_batch, phase, self._category(record))
        if key not in self._frames:
            names = ("operator", "module", "micro-batch", "phase", "category")
            self._frames[key] = [
                {"filename": name, "line": 0, "name": word} for name, word in zip(names, key, strict=True)
            ]
        return self._frames[key]


def _free_block(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
