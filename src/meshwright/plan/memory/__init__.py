"""Peak memory in closed form: the worst moment of the worst rank."""

from meshwright.plan.job import Job
from meshwright.plan.memory.report import MemoryReport


def predict_memory(job: Job) -> MemoryReport:
    """Memory of every pipeline stage of a job, bytes."""
    if job.engine.family == "fsdp":
        from meshwright.plan.memory.fsdp import stages
    else:
        from meshwright.plan.memory.megatron import stages
    return MemoryReport(stages=stages(job))
