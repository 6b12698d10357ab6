"""Pipeline schedules: seconds from first to last pass, in closed form where it is exact and replayed where not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from meshwright.plan.interleave import group_size
from meshwright.plan.time.report import Span
from meshwright.spec.layout import PipelineSchedule

Pass = tuple[bool, int, int]
"""(forward, micro-batch, chunk) where a chunk is a virtual stage, numbered through the whole model."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Passes of one optimizer step.

    Attributes:
        stages: ranks of the pipeline.
        forward / backward: seconds of one micro-batch through each chunk; chunk c lies on stage c % stages, so that
            there are stages x virtual stages of them. A blocking send belongs into the chunk's own time.
        hop: seconds from a chunk's end to the start of the next on another stage, during which neither waits.
    """

    schedule: PipelineSchedule
    stages: int
    micro_batches: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    hop: float = 0.0

    @property
    def rounds(self) -> int:
        """Chunks per stage."""
        return len(self.forward) // self.stages

    def busy(self, stage: int) -> float:
        """Seconds of work of a stage per micro-batch."""
        return sum(self.forward[stage :: self.stages]) + sum(self.backward[stage :: self.stages])


MOST_REPLAYED = 512
"""Passes up to which a schedule is replayed where no closed form is exact: about a millisecond."""


@lru_cache(maxsize=8192)
def makespan(pipeline: Pipeline) -> float:
    """Seconds from the first forward to the last backward pass.

    Exact for GPipe, for equal stages, and for 1F1B over stages as cuts and ends of a model make them; short schedules
    of other stages are replayed, and long ones are within 3 % of the replay.
    """
    stages, micro_batches = pipeline.stages, pipeline.micro_batches
    if stages == 1:
        return micro_batches * pipeline.busy(0)
    if pipeline.schedule == "gpipe" and pipeline.rounds == 1 and pipeline.hop == 0:
        return _gpipe(pipeline)
    exact = pipeline.schedule == "1f1b" and _rises(pipeline) and pipeline.hop == 0 and micro_batches > stages
    if not exact and 2 * min(micro_batches, 5 * stages) * len(pipeline.forward) <= MOST_REPLAYED:
        return _extrapolated(pipeline)
    if pipeline.schedule == "1f1b" and micro_batches > stages:
        return _one_forward_one_backward(pipeline) + 2 * (stages - 1) * pipeline.hop
    return _through_and_wait(pipeline)


def spans(pipeline: Pipeline) -> tuple[Span, ...]:
    """Every pass with its start and end, replayed; the passes of one stage never overlap."""
    return tuple(_replay(pipeline))


def _rises(pipeline: Pipeline) -> bool:
    """Whether no path through 1F1B turns twice: stages between the ends are alike, or none is faster than the one
    before (an even cut puts the layers that are left over last) and the first is not the slowest."""
    between = [(times[0], times[1:-1]) for times in (pipeline.forward, pipeline.backward)]
    if all(len(set(middle)) <= 1 for _, middle in between):
        return True
    return all(first <= middle[-1] and list(middle) == sorted(middle) for first, middle in between)


def _gpipe(pipeline: Pipeline) -> float:
    """A flow shop in each direction: all stages once, and the slowest for every further micro-batch."""
    more = pipeline.micro_batches - 1
    forward = sum(pipeline.forward) + more * max(pipeline.forward)
    return forward + sum(pipeline.backward) + more * max(pipeline.backward)


def _one_forward_one_backward(pipeline: Pipeline) -> float:
    """Longest path through the passes of 1F1B (arXiv:2104.04473, figure 4), for more micro-batches than stages, of
    which all but the first and the last are alike.

    On stage k it runs: forward of the first micro-batch; whatever is longest until its gradient is back (``ahead``:
    down to some stage, through that one's warm-up passes, and back); one backward and one forward pass in turn; the
    same from the last forward to its gradient (``behind``); backward of the last micro-batch. Before and after lie
    the stages above. For equal stages this is (micro-batches + stages - 1) x (forward + backward).
    """
    last = pipeline.stages - 1
    ahead = behind = longest = 0.0
    above = sum(pipeline.forward) + sum(pipeline.backward)
    for stage in range(last, -1, -1):
        forward, backward, warm = pipeline.forward[stage], pipeline.backward[stage], last - stage
        ahead, behind = max(ahead, warm * forward), max(behind, warm * backward)
        above -= forward + backward
        turns = (pipeline.micro_batches - 1 - warm) * (forward + backward)
        longest = max(longest, above + forward + ahead + turns + behind + backward)
        ahead, behind = ahead + forward + backward, behind + forward + backward
    return longest


def _through_and_wait(pipeline: Pipeline) -> float:
    """The busiest stage works through all micro-batches, and waits for one chunk of each other stage both ways.

    Interleaved 1F1B (arXiv:2104.04473, section 2.2.2); one round is 1F1B with fewer micro-batches than stages. A
    message between chunks is waited for on the way down and back alone. Zero-bubble schedules fill the wait with
    products of weight gradients, twice as long as the forward pass (arXiv:2401.10241, table 2).
    """
    chunks = len(pipeline.forward)
    busiest = max(pipeline.busy(stage) for stage in range(pipeline.stages))
    forward, backward = sum(pipeline.forward) / chunks, sum(pipeline.backward) / chunks
    wait = forward + backward
    if pipeline.schedule == "zero_bubble":
        wait -= 2 * min(forward, backward / 2)
    return pipeline.micro_batches * busiest + (pipeline.stages - 1) * wait + 2 * (chunks - 1) * pipeline.hop


def _extrapolated(pipeline: Pipeline) -> float:
    """Replay of a few micro-batches; every further group of as many as there are stages takes as long as the last."""
    group = pipeline.stages
    enough = 4 * group + pipeline.micro_batches % group
    if pipeline.micro_batches <= enough:
        return _end(pipeline, pipeline.micro_batches)
    long = _end(pipeline, enough)
    return long + (pipeline.micro_batches - enough) / group * (long - _end(pipeline, enough - group))


def _end(pipeline: Pipeline, micro_batches: int) -> float:
    few = Pipeline(
        schedule=pipeline.schedule,
        stages=pipeline.stages,
        micro_batches=micro_batches,
        forward=pipeline.forward,
        backward=pipeline.backward,
        hop=pipeline.hop,
    )
    return max(span.end for span in _replay(few))


def _replay(pipeline: Pipeline) -> Iterator[Span]:
    """Run each stage's passes in its order, each as soon as stage and input are there."""
    done: dict[Pass, float] = {}
    orders = [_order(pipeline, stage) for stage in range(pipeline.stages)]
    stages = [_Stage(pipeline, stage, orders[stage]) for stage in range(pipeline.stages)]
    waiting = True
    while waiting:
        waiting = False
        for stage in stages:
            yield from stage.advance(done)
            waiting = waiting or not stage.finished


class _Stage:
    """One rank of the pipeline while the schedule is replayed."""

    def __init__(self, pipeline: Pipeline, stage: int, order: list[Pass]) -> None:
        self.pipeline, self.stage, self.order = pipeline, stage, order
        self.next, self.now = 0, 0.0
        # Products of weight gradients cost about as much as the forward pass; zero-bubble schedules put them off
        # (arXiv:2401.10241).
        self.splits = pipeline.schedule == "zero_bubble"
        self.put_off: list[Pass] = []

    @property
    def finished(self) -> bool:
        return self.next == len(self.order) and not self.put_off

    def advance(self, done: dict[Pass, float]) -> Iterator[Span]:
        """Run passes until one has to wait for a stage that has not come that far."""
        while self.next < len(self.order):
            job = self.order[self.next]
            ready = self._ready(job, done)
            if ready is None:
                return
            while self.put_off and self.now < ready:
                yield self._weight_gradients()
            self.next += 1
            yield self._run(job, max(self.now, ready), done)
        while self.put_off:
            yield self._weight_gradients()

    def _ready(self, job: Pass, done: dict[Pass, float]) -> float | None:
        forward, micro_batch, chunk = job
        last = len(self.pipeline.forward) - 1
        if forward:
            before = (True, micro_batch, chunk - 1) if chunk else None
        else:
            before = (False, micro_batch, chunk + 1) if chunk < last else (True, micro_batch, chunk)
        if before is None:
            return 0.0
        end = done.get(before)
        moves = before[2] % self.pipeline.stages != self.stage
        return None if end is None else end + self.pipeline.hop * moves

    def _run(self, job: Pass, start: float, done: dict[Pass, float]) -> Span:
        forward, micro_batch, chunk = job
        seconds = self.pipeline.forward[chunk] if forward else self.pipeline.backward[chunk]
        if self.splits and not forward:
            seconds -= self._later(chunk)
            self.put_off.append(job)
        self.now = done[job] = start + seconds
        return Span(
            stage=self.stage,
            kind="forward" if forward else "backward",
            micro_batch=micro_batch,
            start=start,
            end=self.now,
        )

    def _later(self, chunk: int) -> float:
        return min(self.pipeline.forward[chunk], self.pipeline.backward[chunk] / 2)

    def _weight_gradients(self) -> Span:
        _, micro_batch, chunk = self.put_off.pop(0)
        start, self.now = self.now, self.now + self._later(chunk)
        return Span(stage=self.stage, kind="backward", micro_batch=micro_batch, start=start, end=self.now)


def _order(pipeline: Pipeline, stage: int) -> list[Pass]:
    """The passes of a stage in the order in which it runs them."""
    forward = list(_passes(pipeline, stage, True))
    backward = list(_passes(pipeline, stage, False))
    warm = min(len(forward), _warm_up(pipeline, stage))
    order = forward[:warm]
    for ahead, behind in zip(forward[warm:], backward, strict=False):
        order += [ahead, behind]
    return order + backward[len(forward) - warm :]


def _warm_up(pipeline: Pipeline, stage: int) -> int:
    """Forward passes before the first backward pass (megatron/core/pipeline_parallel/schedules.py)."""
    if pipeline.schedule == "gpipe":
        return pipeline.micro_batches * pipeline.rounds
    behind = pipeline.stages - 1 - stage
    if pipeline.rounds == 1:
        return behind
    return 2 * behind + (pipeline.rounds - 1) * group_size(pipeline.stages, pipeline.micro_batches)


def _passes(pipeline: Pipeline, stage: int, forward: bool) -> Iterator[Pass]:
    """Passes of one direction: groups of micro-batches go through one chunk after the other."""
    chunks = range(stage, len(pipeline.forward), pipeline.stages)
    ordered: Callable[[range], Iterator[int]] = iter if forward else reversed
    size = group_size(pipeline.stages, pipeline.micro_batches)
    for first in range(0, pipeline.micro_batches, size):
        group = range(first, min(first + size, pipeline.micro_batches))
        for chunk in ordered(chunks):
            for micro_batch in group:
                yield forward, micro_batch, chunk
