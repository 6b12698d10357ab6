"""Peak memory of the FSDP family: Meshwright, torchtitan, Composer and LitGPT."""

from meshwright.plan.job import Job
from meshwright.plan.memory.fsdp_moments import moments
from meshwright.plan.memory.fsdp_stage import stages_of
from meshwright.plan.memory.report import StageMemory


def stages(job: Job) -> tuple[StageMemory, ...]:
    """Memory of each pipeline stage."""
    return tuple(StageMemory(stage=stage.number, moments=moments(stage)) for stage in stages_of(job))
