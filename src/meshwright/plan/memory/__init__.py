"""Peak memory in closed form: the worst moment of the worst rank."""

from meshwright.plan.job import Job
from meshwright.plan.memory.cut import stage_layers
from meshwright.plan.memory.report import MemoryReport


def predict_memory(job: Job, *, worst_only: bool = False) -> MemoryReport:
    """Memory of the pipeline stages of a job, bytes.

    Args:
        worst_only: leave out the stages that cannot be the worst, for a search over many jobs.
    """
    if job.engine.family == "fsdp":
        from meshwright.plan.memory.fsdp import stages
    else:
        from meshwright.plan.memory.megatron import stages
    return MemoryReport(stages=stages(job, _candidates(job) if worst_only else None))


def _candidates(job: Job) -> frozenset[int] | None:
    """Numbers of the stages that one of can be the worst; None is all.

    No schedule holds fewer micro-batches on an earlier stage, so of stages that are alike the first needs most.
    """
    last = job.layout.pipeline_stage - 1
    layers_differ = isinstance(job.recompute.layers, tuple) or job.network.experts is not None
    if layers_differ or job.network.mtp_layers or last < 3:
        return None
    counts = stage_layers(job)
    middle = {counts.index(number, 1, last) for number in set(counts[1:last])}
    return frozenset({0, last, *middle})
