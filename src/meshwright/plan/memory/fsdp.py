"""Peak memory of the FSDP family: Meshwright, torchtitan, Composer and LitGPT."""

from collections.abc import Container

from meshwright.plan.job import Job
from meshwright.plan.memory.fsdp_moments import moments
from meshwright.plan.memory.fsdp_stage import stages_of
from meshwright.plan.memory.report import StageMemory


def stages(job: Job, numbers: Container[int] | None = None) -> tuple[StageMemory, ...]:
    """Memory of each pipeline stage, or of those in ``numbers``."""
    wanted = [stage for stage in stages_of(job) if numbers is None or stage.number in numbers]
    return tuple(StageMemory(stage=stage.number, moments=moments(stage)) for stage in wanted)
