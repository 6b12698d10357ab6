"""Every legal layout of a question, the ones that fit ranked.

The order of the sieve: divisibility and support (no prediction at all), then the least memory that any variant of a
split and ZeRO stage can have, then each variant's memory, and time only for what fits.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from meshwright.plan.job import Job
from meshwright.plan.memory import predict_memory
from meshwright.plan.memory.report import MemoryReport
from meshwright.plan.question import Question
from meshwright.plan.time import predict_time
from meshwright.plan.time.report import TimeReport
from meshwright.plan.variants import Illegal, Variants, variants
from meshwright.spec.layout import Layout
from meshwright.spec.training import Batch

Fit = Literal["fits", "tight", "over"]
FITS_UP_TO = 0.92
"""Share of the usable memory up to which a prediction counts as fitting; between this and 1 it is tight."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One layout with what is predicted for it.

    Attributes:
        memory: of the stages that can be the worst in what a search found; of all in what `predict` made.
        limit: bytes per device it is held against.
        time: None where the layout needs more memory than there is.
    """

    job: Job
    memory: MemoryReport
    limit: float
    time: TimeReport | None = None

    @property
    def needed(self) -> float:
        """Bytes of the worst rank's device."""
        return self.memory.worst.device_total

    @property
    def fit(self) -> Fit:
        """Fits up to 92 % of the limit, tight up to all of it."""
        share = self.needed / self.limit
        return "fits" if share <= FITS_UP_TO else "tight" if share <= 1 else "over"

    @property
    def seconds(self) -> float:
        """Predicted time of a step; infinite where it was not predicted."""
        return self.time.seconds if self.time else float("inf")

    @property
    def name(self) -> str:
        """``dp2 tp2 pp2 zero1``, with ``group8`` where ZeRO shards inside groups of 8 ranks."""
        layout = self.job.layout
        group = "" if layout.zero_group_size is None else f" group{layout.zero_group_size}"
        return layout.short() + group + (f" ep{layout.expert_parallel}" if layout.expert_parallel > 1 else "")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the search found.

    Attributes:
        fitting / tight: predicted in full, best first; ranked by time, none that recomputes more than it must.
        fits / just_fits: how many there are in all.
        over: per split and ZeRO stage of which nothing fits, its variant that needs least.
        illegal: splits that break a rule or that the engine does not support.
        considered: legal layouts in all; those over memory need no prediction of their own where a variant that
            needs less is over already.
        predicted: layouts whose memory was predicted.
        seconds: the search took.
    """

    question: Question
    fitting: tuple[Candidate, ...]
    tight: tuple[Candidate, ...]
    over: tuple[Candidate, ...]
    illegal: tuple[Illegal, ...]
    fits: int
    just_fits: int
    considered: int
    predicted: int
    seconds: float

    @property
    def best(self) -> Candidate | None:
        """The first of those that fit, else of the tight ones."""
        return next(iter((*self.fitting, *self.tight)), None)


def search(question: Question) -> Answer:
    """Look at every legal layout and rank the ones that fit by the question's objective."""
    started = time.perf_counter()
    illegal: list[Illegal] = []
    found: list[Candidate] = []
    over: list[Candidate] = []
    counts: Counter[str] = Counter()
    for group in variants(question, illegal):
        counts["considered"] += group.count
        within = list(_within(question, group, counts))
        found += within
        if not within:
            over.append(_least(question, group, counts))
    timed = [replace(candidate, time=predict_time(candidate.job)) for candidate in found]
    ranked = sorted(timed, key=lambda candidate: _key(candidate, question))
    return Answer(
        question=question,
        fitting=tuple(candidate for candidate in ranked if candidate.fit == "fits"),
        tight=tuple(candidate for candidate in ranked if candidate.fit == "tight"),
        over=tuple(sorted(over, key=lambda candidate: candidate.needed)),
        illegal=tuple(illegal),
        fits=counts["fits"],
        just_fits=counts["tight"],
        considered=counts["considered"],
        predicted=counts["predicted"],
        seconds=time.perf_counter() - started,
    )


def one_per_split(candidates: Sequence[Candidate], number: int) -> list[Candidate]:
    """The best variant of each split, filled up with the next best variants; in the order they came in."""
    seen: set[tuple[int, ...]] = set()
    first: list[int] = []
    others: list[int] = []
    for place, candidate in enumerate(candidates):
        split = _split(candidate.job.layout)
        (others if split in seen else first).append(place)
        seen.add(split)
    chosen = sorted([*first, *others][:number])
    return [candidates[place] for place in chosen]


def predict(question: Question, job: Job) -> Candidate:
    """Memory and time of one job, whether it fits or not."""
    return Candidate(job=job, memory=predict_memory(job), time=predict_time(job), limit=question.limit)


def _within(question: Question, group: Variants, counts: Counter[str]) -> Iterator[Candidate]:
    """Variants of one split and ZeRO stage that are not over the limit.

    More sequences at once never take less memory, so the first size that is over even when everything is
    recomputed ends the row; a single micro-batch per step is looked at by itself, for it accumulates nothing.
    """
    if _least(question, group, counts).fit == "over":
        return
    for frame in group.frames:
        full = False
        for batch in group.batches:
            if full and batch.micro_batch_num > 1:
                continue
            fitting = list(_recomputing(question, group, frame, batch, counts))
            full = not fitting
            counts.update(candidate.fit for candidate in fitting)
            # Recomputing less is faster: of each kind only the last can be the best.
            yield from fitting if question.objective == "memory" else {c.fit: c for c in fitting}.values()


def _recomputing(
    question: Question, group: Variants, frame: Job, batch: Batch, counts: Counter[str]
) -> Iterator[Candidate]:
    """From the least memory (all recomputed) upwards, until one is over."""
    for recompute in group.recomputes:
        candidate = _memory(question, replace(frame, batch=batch, recompute=recompute), counts)
        if candidate.fit == "over":
            return
        yield candidate


def _least(question: Question, group: Variants, counts: Counter[str]) -> Candidate:
    """The variant of a group that needs least memory."""
    frame, recompute = group.frames[0], group.recomputes[0]
    ends = {group.batches[0], group.batches[-1]} if group.batches[-1].micro_batch_num == 1 else {group.batches[0]}
    jobs = [replace(frame, batch=batch, recompute=recompute) for batch in sorted(ends, key=_size)]
    return min((_memory(question, job, counts) for job in jobs), key=lambda candidate: candidate.needed)


def _memory(question: Question, job: Job, counts: Counter[str]) -> Candidate:
    counts["predicted"] += 1
    return Candidate(job=job, memory=predict_memory(job, worst_only=True), limit=question.limit)


def _size(batch: Batch) -> int:
    return batch.micro_batch_size


def _split(layout: Layout) -> tuple[int, ...]:
    return (
        layout.data_parallel,
        layout.model_parallel,
        layout.pipeline_stage,
        layout.context_parallel,
        layout.expert_parallel,
    )


def _key(candidate: Candidate, question: Question) -> tuple[float, float, int, int]:
    """Time and memory in the order of the objective; between equals the plainer layout."""
    layout = candidate.job.layout
    plain = (layout.model_parallel * layout.pipeline_stage * layout.context_parallel, layout.zero_stage)
    figures = (round(candidate.seconds, 6), candidate.needed)
    return (*(figures if question.objective == "time" else figures[::-1]), *plain)
