"""What the bytes of a tape were, worked out after the run."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.dryrun.tape import PHASES, Moment, Phase, Record, Tape

Category = Literal[
    "weights",
    "gathered weights",
    "gradients",
    "optimizer",
    "saved activations",
    "recomputed",
    "temporaries",
    "logits and loss",
    "communication",
    "inputs and tables",
    "workspaces",
]
CATEGORIES: tuple[Category, ...] = get_args(Category)
LAYER = re.compile(r"^layers\.\d+")
LOSS = "loss"
"""Name of the decoder's module that computes it."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Live bytes at the worst moment of a stretch of the run.

    Attributes:
        event: index of the allocation on the tape.
        modules: bytes by module path, largest first; "" is what no module owns.
    """

    bytes: int
    moment: Moment
    event: int
    categories: Mapping[Category, int]
    modules: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Memory of one optimizer step.

    Attributes:
        before: live bytes when it begins.
        phases: worst moment of each phase, in the order of the step.
    """

    before: int
    phases: Mapping[Phase, Peak]

    @property
    def peak(self) -> Peak:
        """The worst moment of all."""
        return max(self.phases.values(), key=lambda peak: peak.bytes)


def step_memory(tape: Tape, step: int = -1) -> StepMemory:
    """Memory of one step of a tape, by default the last."""
    number = step % len(tape.starts)
    before, worst = _worst_of_phases(tape, number)
    peaks = _peaks(tape, dict(worst.values()), number)
    ordered = {phase: peaks[worst[phase][0]] for phase in PHASES if phase in worst}
    return StepMemory(before=before, phases=ordered)


def curve(tape: Tape) -> list[int]:
    """Live bytes after each event."""
    total, totals = 0, []
    for event in tape.events:
        total += event.change
        totals.append(total)
    return totals


def layers_together(modules: Mapping[str, int]) -> Counter[str]:
    """Bytes by module path, with modules of the same place in all layers as one: ``layers.*.mlp``."""
    sums: Counter[str] = Counter()
    for name, size in modules.items():
        sums[LAYER.sub("layers.*", name)] += size
    return sums


def category(record: Record, step: int) -> Category:
    """What a storage is in one step: by its tag, else by where it was made and freed."""
    if record.tag is not None:
        tagged: Mapping[str, Category] = {"inputs": "inputs and tables", "workspace": "workspaces"}
        return tagged.get(record.tag, record.tag)  # type: ignore[arg-type]
    born, died = record.born, record.died
    if born.step < step and died is None:
        return "inputs and tables"
    if born.module == LOSS:
        return "logits and loss"
    if born.recomputing:
        return "recomputed"
    kept = died is None or (died.phase, died.micro_batch) != (born.phase, born.micro_batch)
    return "saved activations" if born.phase == "forward" and kept else "temporaries"


def _worst_of_phases(tape: Tape, step: int) -> tuple[int, dict[Phase, tuple[int, int]]]:
    """Live bytes before a step; by phase, the index of the event that made its peak and the bytes then."""
    events, inside = tape.events, tape.step(step)
    before = total = sum(event.change for event in events[: inside.start])
    worst: dict[Phase, tuple[int, int]] = {}
    for index in inside:
        change, _, moment = events[index]
        total += change
        if change > 0 and total > worst.get(moment.phase, (0, -1))[1]:
            worst[moment.phase] = (index, total)
    return before, worst


def _peaks(tape: Tape, totals: Mapping[int, int], step: int) -> dict[int, Peak]:
    """What lives at some events, in one pass over the tape."""
    live: Counter[Record] = Counter()
    peaks: dict[int, Peak] = {}
    for index, (change, record, moment) in enumerate(tape.events):
        live[record] += change
        if live[record] == 0:
            del live[record]
        if index in totals:
            peaks[index] = _peak(live.items(), totals[index], moment, index, step)
    return peaks


def _peak(live: Iterable[tuple[Record, int]], total: int, moment: Moment, event: int, step: int) -> Peak:
    categories: Counter[Category] = Counter()
    modules: Counter[str] = Counter()
    for record, size in live:
        categories[category(record, step)] += size
        modules[record.owner or record.born.module] += size
    return Peak(
        bytes=total,
        moment=moment,
        event=event,
        categories=dict(categories.most_common()),
        modules=dict(modules.most_common()),
    )
