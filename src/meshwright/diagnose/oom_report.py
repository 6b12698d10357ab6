"""The report of a rank that ran out of memory: pure text from numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.config.validate import show
from meshwright.diagnose.expected import Expected, single_changes
from meshwright.plan.levers import Lever
from meshwright.plan.memory.report import Category, Moment, StageMemory
from meshwright.plan.override import keys_of, pasteable
from meshwright.plan.words import CATEGORY_WORDS

KIB, MIB, GIB = 2**10, 2**20, 2**30
FRAGMENTED = 0.2
"""Share of the device that is reserved but not allocated, from which fragmentation is to blame."""
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
SMALLEST_SHOWN = 0.002
"""Share of the total below which a part is not worth a line."""
AT_PEAK = ("forward", "backward", "gradients", "evaluation")
"""Phases that are held against the peak of the step."""
MUCH_MORE = 0.05
"""Share of the total by which a part must exceed its plan to be called more than planned."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run stood.

    Attributes:
        step: counted from 1; None before the first.
        micro_batch / micro_batches: which of how many, counted from 1; None outside forward and backward.
        module: path in the model; empty where it is not known.
    """

    rank: int
    world_size: int
    step: int | None
    phase: str
    micro_batch: int | None = None
    micro_batches: int = 1
    module: str = ""
    operator: str = ""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Bytes of one kind at the failure, and what the plan has of them."""

    name: str
    bytes: float
    planned: float


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """The allocation that failed, bytes.

    Attributes:
        requested: None where the error does not say.
        reserved: held by the allocator, allocated or not.
        total: size of the device, or the limit that was set.
        available: what this process could have had: ``total`` without what others hold.
        parts: what the allocated bytes were.
        moment: name of the planned moment that they are held against.
    """

    requested: int | None
    allocated: int
    reserved: int
    total: int
    available: int
    parts: tuple[Part, ...]
    moment: str

    @property
    def fragmented(self) -> bool:
        """Memory was there, but not in one piece."""
        unused = self.reserved - self.allocated
        return unused > FRAGMENTED * self.total and unused > (self.requested or 0)


def report(place: Place, shortage: Shortage, found: Expected) -> str:
    """Where it happened, what the memory was against the plan, and what to change, one thing at a time."""
    return "\n".join(
        [
            f"out of memory: {where(place)}",
            f"  {_amounts(shortage)}",
            *(f"  {line}" for line in _fragmentation(shortage)),
            *_table(shortage),
            *(f"  {line}" for line in _verdict(shortage, found)),
            *_changes(found),
        ]
    )


def where(place: Place) -> str:
    """``rank 1 of 2, step 3, backward of micro-batch 2 of 4, in layers.1.mlp (aten::mm)``."""
    parts = [f"rank {place.rank} of {place.world_size}"]
    if place.step is not None:
        parts.append(f"step {place.step}")
    micro_batch = f" of micro-batch {place.micro_batch} of {place.micro_batches}" if place.micro_batch else ""
    parts.append(place.phase + micro_batch)
    operator = f" ({place.operator})" if place.operator else ""
    if place.module or operator:
        parts.append(f"in {place.module or 'no module'}{operator}")
    return ", ".join(parts)


def amount(size: float) -> str:
    """Bytes in the largest unit that leaves a number above 1."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size:.0f} B"


def planned_moment(stage: StageMemory, phase: str) -> Moment:
    """The moment of the plan to hold a phase against: its own, or what lives before and between steps."""
    update = next(moment for moment in stage.moments if moment.name == "optimizer step")
    if phase.startswith("optimizer"):
        return update
    if phase in AT_PEAK:
        return stage.peak
    return Moment(name="state between steps", parts={key: update.parts[key] for key in ("weights", "optimizer")})


def parts_of(measured: Mapping[Category, float], moment: Moment, rest: float = 0.0) -> tuple[Part, ...]:
    """Measured categories beside the planned ones, largest first.

    Args:
        rest: bytes of which nothing more is known; they are held against all categories that are not measured.
    """
    parts = [_part(key, size, moment) for key, size in measured.items()]
    others = [key for key in moment.parts if key not in measured]
    if rest:
        planned = sum(moment.parts[key] for key in others)
        parts.append(Part(name="everything else", bytes=rest, planned=planned))
    else:
        parts += [_part(key, 0.0, moment) for key in others]
    return tuple(sorted(parts, key=lambda part: -part.bytes))


def _part(key: Category, size: float, moment: Moment) -> Part:
    return Part(name=CATEGORY_WORDS[key], bytes=size, planned=moment.parts.get(key, 0.0))


def _amounts(shortage: Shortage) -> str:
    asked = "" if shortage.requested is None else f"{amount(shortage.requested)} asked for; "
    others = shortage.total - shortage.available
    elsewhere = f", {amount(others)} of it held outside this process's allocator" if others > MIB else ""
    return (
        f"{asked}{amount(shortage.allocated)} allocated, {amount(shortage.reserved)} reserved"
        f" of {amount(shortage.total)}{elsewhere}"
    )


def _fragmentation(shortage: Shortage) -> Iterator[str]:
    if shortage.fragmented:
        yield (
            f"fragmentation: {amount(shortage.reserved - shortage.allocated)} are reserved but not allocated, in pieces"
            f" that are too small; set {EXPANDABLE}"
        )


def _table(shortage: Shortage) -> Iterator[str]:
    total = sum(part.bytes for part in shortage.parts)
    yield f"  {'what it is':<24}{'now':>12}{'planned':>14}   (at the plan's {shortage.moment})"
    for part in shortage.parts:
        if max(part.bytes, part.planned) >= SMALLEST_SHOWN * total:
            yield f"  {part.name:<24}{amount(part.bytes):>12}{amount(part.planned):>14}"


def _verdict(shortage: Shortage, found: Expected) -> Iterator[str]:
    biggest = max(shortage.parts, key=lambda part: part.bytes)
    yield f"biggest part: {biggest.name}, {amount(biggest.bytes)}; the plan has {amount(biggest.planned)}"
    surplus = max(shortage.parts, key=lambda part: part.bytes - part.planned)
    if surplus.bytes - surplus.planned > MUCH_MORE * shortage.allocated:
        yield f"more than planned: {surplus.name}, by {amount(surplus.bytes - surplus.planned)}"
    needed, limit = found.candidate.needed, found.candidate.limit
    worst = f"the plan: {amount(needed)} on the fullest rank, at {found.candidate.memory.worst.peak.name}"
    if needed > limit:
        yield f"{worst}: {amount(needed - limit)} more than the {amount(limit)} there are"
    else:
        yield f"{worst}: that fits {amount(limit)}, so what is above the plan is the cause"


def _changes(found: Expected) -> Iterator[str]:
    changes = single_changes(found)
    if not changes:
        yield "no single change on these devices saves much: more devices, or a smaller model or sequence"
        return
    yield "what to change, one thing at a time, in this order (predicted):"
    for number, lever in enumerate(changes, start=1):
        yield f"  {number}. {_change(lever, found)}"
        yield f"     {pasteable(_keys(lever, found))}"
    if all(lever.candidate.fit == "over" for lever in changes):
        yield "  none is enough by itself; meshwright plan searches all combinations"


def _change(lever: Lever, found: Expected) -> str:
    slower = 100 * lever.costs / found.candidate.seconds
    verdict = {"fits": "fits", "tight": "just fits", "over": "still over"}[lever.candidate.fit]
    return f"{lever.change}: {amount(lever.saves)} less, {slower:+.0f} % time per step, {verdict}"


def _keys(lever: Lever, found: Expected) -> Sequence[str]:
    """``key=value`` for every key that a change decides otherwise."""
    job, before = lever.candidate.job, found.candidate.job
    words = [f"{key}={show(value)}" for key, value in keys_of(job).items() if keys_of(before)[key] != value]
    if job.loss_chunk_tokens != before.loss_chunk_tokens:
        words.append(f"train.loss_chunk_tokens={job.loss_chunk_tokens}")
    return words
