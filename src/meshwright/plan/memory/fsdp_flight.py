"""Which micro-batch of a step can be the fullest on a stage."""

from typing import NamedTuple

from meshwright.plan.job import Job


class Flight(NamedTuple):
    """A micro-batch in backward.

    Attributes:
        live: micro-batches whose activations live, itself included.
        later: an earlier one of the step has left gradients.
        last: it is the last of the step.
    """

    live: float
    later: bool
    last: bool


def flights(job: Job, stage: int, zero: int) -> tuple[Flight, ...]:
    """Candidates for the fullest. Of several, the forward pass before the first is the fullest one.

    1F1B holds ``stages - stage`` micro-batches (arXiv:2104.04473 section 2.2), GPipe all. Interleaved, the warm-up of a
    rank is ``(chunks - 1) x stages + 2 x (stages - stage - 1) + 1`` passes through one of its chunks of layers.
    """
    count, layout, chunks = job.batch.micro_batch_num, job.layout, job.virtual_stages
    if layout.pipeline_stage == 1:
        # ZeRO-2 keeps weights gathered in every backward pass but the last.
        if zero != 2 or count == 1:
            return (Flight(1, count > 1, True),)
        return (Flight(1, True, False),) if count > 2 else (Flight(1, False, False), Flight(1, True, True))
    after = layout.pipeline_stage - stage - 1
    depth = ((chunks - 1) * layout.pipeline_stage + 2 * after + 1) / chunks if chunks > 1 else after + 1
    live = min(count, count if layout.pipeline_schedule == "gpipe" else depth)
    if count > live:
        return (Flight(live, True, count == 2),)
    first = Flight(live, False, count == 1)
    return (first, Flight(live - 1, True, count == 2)) if live > 1 else (first,)
