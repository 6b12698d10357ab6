"""What one change to a layout would do: each change predicted, none assumed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.plan.job import Job
from meshwright.plan.question import Question
from meshwright.plan.search import Answer, Candidate, predict, search
from meshwright.plan.variants import variants
from meshwright.spec import rules, support
from meshwright.spec.batch import solve_batch
from meshwright.spec.layout import Layout
from meshwright.spec.parameters import total
from meshwright.spec.training import Batch, Recompute

CHUNK = 1024
WORTH_TELLING = 0.1
"""Share of the memory that a change must save to be told although it is not enough by itself."""
MOST_DEVICES = 4096
HOST_BYTES_PER_PARAMETER = 18.0
"""With the optimizer on the host: fp32 master and both Adam moments (12), fp32 gradients (4), and 16-bit weights on
their way back (2); ZeRO-Offload, arXiv:2101.06840 section 4."""


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One change and what it leads to.

    Attributes:
        change: in words, such as ``recompute everything``.
        supported: whether Meshwright trains it today; true for other engines, and where the layout before the change
            was one that Meshwright does not train.
        saves: bytes per device less than before.
        costs: seconds per step more than before.
    """

    change: str
    candidate: Candidate
    supported: bool
    saves: float
    costs: float


def levers(question: Question, base: Candidate) -> list[Lever]:
    """Every single change that saves memory: those after which it fits first, the fastest of them first."""
    reference = base if base.time else predict(question, base.job)
    found = []
    asked_for = not _supported(question, base.job)
    for change, job in _changes(question, base.job):
        if not _legal(question, job):
            continue
        candidate = predict(question, job)
        lever = Lever(
            change=change,
            candidate=candidate,
            supported=asked_for or _supported(question, job),
            saves=reference.needed - candidate.needed,
            costs=candidate.seconds - reference.seconds,
        )
        if lever.saves > (0 if candidate.fit != "over" else WORTH_TELLING * reference.needed):
            found.append(lever)
    return sorted(found, key=_order)


def smallest_that_fits(question: Question) -> Answer | None:
    """The answer on the fewest devices, doubling, on which something fits; None up to `MOST_DEVICES`."""
    number = question.cluster.num_devices
    while (number := number * 2) <= MOST_DEVICES:
        fixed = {key: value for key, value in question.fixed.items() if key != "dp"}
        answer = search(replace(question, cluster=question.cluster.resized(number), fixed=fixed))
        if answer.fitting:
            return answer
    return None


def offloaded(question: Question) -> Candidate | None:
    """The fastest layout that fits once the optimizer states and its step are on the host; None where none does."""
    found = []
    for group in variants(question, []):
        for frame in group.frames[:1]:
            for recompute in group.recomputes:
                job = replace(frame, batch=group.batches[0], recompute=recompute, offload_optimizer=True)
                found.append(predict(question, job))
    return min((candidate for candidate in found if candidate.fit == "fits"), key=_seconds, default=None)


def host_bytes(question: Question) -> float:
    """Main memory over all nodes that an offloaded optimizer takes."""
    return total(question.model, padded=True) * HOST_BYTES_PER_PARAMETER


def _order(lever: Lever) -> tuple[bool, bool, float]:
    over = lever.candidate.fit == "over"
    return over, not lever.supported, -lever.saves if over else lever.candidate.seconds


def _seconds(candidate: Candidate) -> float:
    return candidate.seconds


def _changes(question: Question, job: Job) -> Iterator[tuple[str, Job]]:
    layout, batch = job.layout, job.batch
    if (size := batch.micro_batch_size) > 1:
        for smaller in dict.fromkeys((size // 2, 1)):
            yield from _resized(f"micro_batch_size {smaller}", job, layout, smaller)
    if job.recompute == Recompute():
        select = Recompute(select=question.engine.select_recompute)
        yield f"recompute {' and '.join(select.select)} operators", replace(job, recompute=select)
    if job.recompute.layers != "all":
        yield "recompute everything", replace(job, recompute=Recompute(layers="all"))
    if layout.zero_ranks > 1:
        for stage in question.engine.zero_stages:
            if stage > layout.zero_stage:
                yield f"zero_stage {stage}", replace(job, layout=replace(layout, zero_stage=stage))
    if layout.model_parallel > 1 and not layout.use_seq_parallel:
        yield "use_seq_parallel", replace(job, layout=replace(layout, use_seq_parallel=True))
    if job.loss_chunk_tokens is None and job.tokens > CHUNK:
        yield f"loss_chunk_tokens {CHUNK}", replace(job, loss_chunk_tokens=CHUNK)
    yield from _cut_further(job, layout)


def _cut_further(job: Job, layout: Layout) -> Iterator[tuple[str, Job]]:
    """Twice the degree of one dimension at the cost of data ranks."""
    data, odd = divmod(layout.data_parallel, 2)
    if odd:
        return
    size = job.batch.micro_batch_size
    cuts = (
        ("model_parallel", layout.model_parallel * 2, " with use_seq_parallel"),
        ("context_parallel", layout.context_parallel * 2, ""),
        ("pipeline_stage", layout.pipeline_stage * 2, ""),
    )
    for key, degree, more in cuts:
        changed = replace(layout, data_parallel=data, **{key: degree})  # type: ignore[arg-type]
        if key == "model_parallel":
            changed = replace(changed, use_seq_parallel=True)
        yield from _resized(f"{key} {degree}{more}", job, changed, size)


def _resized(change: str, job: Job, layout: Layout, size: int) -> Iterator[tuple[str, Job]]:
    """The job with another micro-batch size or number of data ranks, the global batch as it was."""
    batch = solve_batch(size, None, job.batch.global_batch_size, layout.data_parallel)
    if isinstance(batch, Batch):
        yield change, replace(job, layout=layout, batch=batch)


def _legal(question: Question, job: Job) -> bool:
    train = replace(question.train, batch=job.batch, recompute=job.recompute)
    return not rules.violations(question.model, job.layout, train)


def _supported(question: Question, job: Job) -> bool:
    if question.engine.name != "meshwright":
        return True
    train = replace(question.train, batch=job.batch, recompute=job.recompute)
    return not (job.offload_optimizer or support.unsupported(question.model, job.layout, train))
