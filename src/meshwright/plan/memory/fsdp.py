"""Peak memory of the FSDP family: Meshwright, torchtitan, Composer and LitGPT."""

from collections.abc import Container

from meshwright.plan.job import Job
from meshwright.plan.memory.allocator import context, slack
from meshwright.plan.memory.fsdp_adapter import adapter_moments
from meshwright.plan.memory.fsdp_moments import moments
from meshwright.plan.memory.fsdp_stage import Stage, stages_of
from meshwright.plan.memory.report import StageMemory


def stages(job: Job, numbers: Container[int] | None = None) -> tuple[StageMemory, ...]:
    """Memory of each pipeline stage, or of those in ``numbers``."""
    return tuple(_memory(stage) for stage in stages_of(job, numbers))


def _memory(stage: Stage) -> StageMemory:
    adapter = stage.job.adapter
    found = moments(stage) if adapter is None else adapter_moments(stage, adapter)
    peak = max(found, key=lambda moment: moment.total)
    return StageMemory(
        stage=stage.number,
        moments=found,
        slack=slack(stage, peak),
        device_constant=context(stage),
    )
