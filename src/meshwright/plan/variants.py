"""Which layouts a question allows: divisibility and support, before anything is predicted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.plan.from_run import job_of
from meshwright.plan.job import Job
from meshwright.plan.question import Question
from meshwright.spec import rules, support
from meshwright.spec.batch import solve_batch
from meshwright.spec.cluster import group_on_nodes
from meshwright.spec.layout import Layout, PipelineSchedule
from meshwright.spec.nearest import divisors
from meshwright.spec.training import Batch, Recompute
from meshwright.spec.violation import Violation

MOST_VIRTUAL_STAGES = 4


@dataclass(frozen=True, kw_only=True)
class Illegal:
    """A split that cannot run, and why.

    Attributes:
        unsupported: the numbers would do, the engine does not (yet).
    """

    layout: Layout
    violations: tuple[Violation, ...]
    unsupported: bool = False


@dataclass(frozen=True, kw_only=True)
class Variants:
    """All legal layouts of one split and ZeRO stage.

    Attributes:
        frames: jobs that differ in ``use_seq_parallel`` and schedule, the one that needs least memory first.
        batches: micro-batch sizes, ascending.
        recomputes: from everything recomputed to nothing.
    """

    frames: tuple[Job, ...]
    batches: tuple[Batch, ...]
    recomputes: tuple[Recompute, ...]

    @property
    def count(self) -> int:
        """Layouts in the group."""
        return len(self.frames) * len(self.batches) * len(self.recomputes)


def variants(question: Question, illegal: list[Illegal]) -> Iterator[Variants]:
    """Groups of legal layouts; splits without any are added to ``illegal``."""
    recomputes = tuple(_recomputes(question))
    for split in _splits(question):
        if (refused := _refused(question, split)) is not None:
            illegal.append(refused)
            continue
        batches, problems = _batches(question, split)
        frames = [frame for frame in _frames(question, split) if batches and _legal(question, frame, batches[0])]
        if not frames:
            illegal.append(Illegal(layout=split, violations=problems or _why(question, split, batches[0])))
            continue
        for stage, group in _sharding(question, split):
            shards = {"zero_stage": stage, "zero_group_size": group}
            jobs = tuple(replace(frame, layout=replace(frame.layout, **shards)) for frame in frames)  # type: ignore[arg-type]
            yield from _by_batches(question, jobs, batches, recomputes)


def _by_batches(
    question: Question, jobs: Sequence[Job], batches: Sequence[Batch], recomputes: tuple[Recompute, ...]
) -> Iterator[Variants]:
    """One group where every schedule takes every batch, else one for each set of batches."""
    sets: dict[tuple[Batch, ...], list[Job]] = {}
    for job in jobs:
        legal = tuple(batch for batch in batches if _legal(question, job, batch))
        if legal:
            sets.setdefault(legal, []).append(job)
    for legal, frames in sets.items():
        yield Variants(frames=tuple(frames), batches=legal, recomputes=recomputes)


def _splits(question: Question) -> Iterator[Layout]:
    """Every way to write the devices as data x tensor x pipeline x context, and experts inside data x context."""
    devices, fixed = question.cluster.num_devices, question.fixed
    experts = 1
    for tensor in _degrees(devices, fixed.get("tp")):
        for pipeline in _degrees(devices // tensor, fixed.get("pp")):
            for context in _degrees(devices // tensor // pipeline, fixed.get("cp")):
                data = devices // tensor // pipeline // context
                if data != fixed.get("dp", data) or fixed.get("ep", experts) != experts:
                    continue
                yield replace(
                    question.layout,
                    data_parallel=data,
                    model_parallel=tensor,
                    pipeline_stage=pipeline,
                    context_parallel=context,
                    expert_parallel=experts,
                    use_seq_parallel=tensor > 1 and fixed.get("sp") != "off",
                    zero_stage=0,
                    zero_group_size=None,
                    pipeline_schedule="1f1b",
                    stage_layers=None,
                )


def _degrees(devices: int, fixed: int | str | None) -> tuple[int, ...]:
    legal = divisors(devices)
    return legal if fixed is None else tuple(degree for degree in legal if degree == fixed)


def _refused(question: Question, split: Layout) -> Illegal | None:
    """A split that the engine does not do at all, whatever the batch."""
    if not question.supported_only:
        return None
    found = support.unsupported(question.model, split, question.train)
    return Illegal(layout=split, violations=tuple(found), unsupported=True) if found else None


def _batches(question: Question, split: Layout) -> tuple[tuple[Batch, ...], tuple[Violation, ...]]:
    """Batches of the global batch on a split, or why there is none."""
    whole, data = question.global_batch_size, split.data_parallel
    size = question.fixed.get("mbs")
    if whole % data:
        unit = int(size or 1)
        solved = solve_batch(unit, None, whole, data)
        return (), tuple(solved if isinstance(solved, list) else ())
    sizes = divisors(whole // data) if size is None else (int(size),)
    solved_all = [solve_batch(each, None, whole, data) for each in sizes]
    batches = tuple(batch for batch in solved_all if isinstance(batch, Batch))
    problems = tuple(violation for batch in solved_all if isinstance(batch, list) for violation in batch)
    return batches, problems if not batches else ()


def _frames(question: Question, split: Layout) -> Iterator[Job]:
    """Jobs of a split over schedules and sequence sharding, the one that needs least memory first."""
    for sequence in _sequence_sharding(question, split):
        for schedule, virtual in _schedules(question, split):
            layout = replace(split, use_seq_parallel=sequence, pipeline_schedule=schedule)
            job = job_of(
                question.model,
                layout,
                question.train,
                cluster=question.cluster,
                profile=question.engine,
                adapter=question.adapter,
            )
            yield replace(job, virtual_stages=virtual)


def _sequence_sharding(question: Question, split: Layout) -> tuple[bool, ...]:
    if split.model_parallel == 1:
        return (False,)
    fixed = question.fixed.get("sp")
    return (True, False) if fixed is None else (fixed == "on",)


def _schedules(question: Question, split: Layout) -> Iterator[tuple[PipelineSchedule, int]]:
    """Schedules with their model chunks per rank."""
    fixed, virtual = question.fixed.get("schedule"), question.fixed.get("vpp")
    # GPipe holds every micro-batch at once and is no faster: of other frameworks' schedules only if asked for.
    gpipe = question.engine.name == "meshwright" or fixed == "gpipe"
    known: tuple[PipelineSchedule, ...] = ("1f1b", "gpipe") if gpipe else ("1f1b",)
    if split.pipeline_stage == 1:
        known = ("1f1b",)
        fixed = None
    for schedule in known:
        if fixed in (None, schedule) and virtual in (None, 1):
            yield schedule, 1
    if split.pipeline_stage > 1 and fixed in (None, "interleaved_1f1b"):
        yield from (("interleaved_1f1b", chunks) for chunks in _chunks(question, split) if virtual in (None, chunks))


def _chunks(question: Question, split: Layout) -> tuple[int, ...]:
    """Model chunks per rank that place every layer (arXiv:2104.04473)."""
    if question.supported_only and "interleaved_1f1b" not in support.PIPELINE_SCHEDULES:
        return ()
    each, left = divmod(question.model.num_layers, split.pipeline_stage)
    return () if left else tuple(number for number in divisors(each) if 1 < number <= MOST_VIRTUAL_STAGES)


def _sharding(question: Question, split: Layout) -> Iterator[tuple[int, int | None]]:
    """ZeRO stages; those that shard weights also inside each node alone, with copies across nodes."""
    fixed = question.fixed.get("group")
    inside = _ranks_in_a_node(question, split)
    for stage in _zero_stages(question, split):
        if fixed is None:
            yield stage, None
            if stage == 3 and 1 < inside < split.zero_ranks:
                yield stage, inside
        elif stage > 0 and split.zero_ranks % int(fixed) == 0:
            yield stage, int(fixed) if int(fixed) < split.zero_ranks else None


def _ranks_in_a_node(question: Question, split: Layout) -> int:
    """Data x context ranks that lie on one node, where every node has as many; else 1."""
    if question.engine.family != "fsdp":
        return 1
    ranks, nodes = group_on_nodes(split, ("data", "context"), question.cluster.devices_per_node)
    return ranks // nodes if ranks % nodes == 0 else 1


def _zero_stages(question: Question, split: Layout) -> tuple[int, ...]:
    fixed = question.fixed.get("zero")
    if fixed is not None:
        return (int(fixed),)
    if split.zero_ranks == 1:
        return (0,)
    most = question.engine.most_zero_with_pipeline if split.pipeline_stage > 1 else 3
    return tuple(stage for stage in question.engine.zero_stages if stage <= most)


def _recomputes(question: Question) -> Iterator[Recompute]:
    fixed = question.fixed.get("recompute")
    if fixed in (None, "all"):
        yield Recompute(layers="all")
    if fixed in (None, "select"):
        yield Recompute(select=question.train.recompute.select or question.engine.select_recompute)
    if fixed in (None, "none"):
        yield Recompute()


def _legal(question: Question, job: Job, batch: Batch) -> bool:
    return not _violations(question, job.layout, batch)


def _violations(question: Question, layout: Layout, batch: Batch) -> list[Violation]:
    train = replace(question.train, batch=batch)
    broken = rules.violations(question.model, layout, train, question.cluster.num_devices)
    if broken or not question.supported_only:
        return broken
    return support.unsupported(question.model, layout, train)


def _why(question: Question, split: Layout, batch: Batch) -> tuple[Violation, ...]:
    sequence = _sequence_sharding(question, split)[-1]
    layout = replace(split, use_seq_parallel=sequence)
    return tuple(_violations(question, layout, batch))
