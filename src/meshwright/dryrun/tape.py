"""What a dry run writes down: one record for each storage, one event for each change of its size."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Phase = Literal["build", "forward", "backward", "gradients", "optimizer"]
PHASES: tuple[Phase, ...] = ("build", "forward", "backward", "gradients", "optimizer")
Tag = Literal["weights", "gathered weights", "gradients", "optimizer", "communication", "inputs", "workspace"]


class Moment(NamedTuple):
    """A point of the run.

    Attributes:
        step: optimizer step, counted from 0; -1 before the first.
        micro_batch: counted from 0 in each direction; -1 outside forward and backward.
        recomputing: inside backward, a part of the forward pass runs again.
    """

    step: int
    phase: Phase
    micro_batch: int
    module: str
    operator: str
    recomputing: bool


@dataclass(slots=True, eq=False)
class Record:
    """One storage.

    Attributes:
        stream: 0 is the compute stream; others count in order of appearance.
        born: where it was first seen.
        size: bytes now, as the device rounds them.
        died: where it was freed; None while it lives.
        tag: what it is known to be by identity or by the operators it went through.
        owner: module that it belongs to by identity; else empty.
    """

    number: int
    stream: int
    born: Moment
    size: int = 0
    died: Moment | None = None
    tag: Tag | None = None
    owner: str = ""


class Event(NamedTuple):
    """``change`` bytes more (negative: less) for one storage."""

    change: int
    record: Record
    moment: Moment


@dataclass
class Tape:
    """Events in order.

    Attributes:
        starts: number of events when each optimizer step began.
    """

    events: list[Event] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def step(self, number: int) -> range:
        """Indices of the events of one optimizer step."""
        ends = [*self.starts[1:], len(self.events)]
        return range(self.starts[number], ends[number])
