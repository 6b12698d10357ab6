"""Peak memory of the Megatron family: Megatron-LM, nanotron, DeepSpeed, MindFormers and MindSpeed.

Every rank keeps whole weights and gradient buffers of its part of the model; the optimizer is sharded from ZeRO-1 on.
"""

from collections.abc import Container

from meshwright.plan.job import Job
from meshwright.plan.memory.constants import Constants, constants
from meshwright.plan.memory.megatron_moments import Fixed, fixed_of, moments
from meshwright.plan.memory.megatron_slack import slack
from meshwright.plan.memory.megatron_stage import Stage, stages_of
from meshwright.plan.memory.report import StageMemory


def stages(job: Job, numbers: Container[int] | None = None) -> tuple[StageMemory, ...]:
    """Memory of each pipeline stage, or of those in ``numbers``."""
    fitted, fixed = constants(job.engine.name, job.cluster.device.family), fixed_of(job)
    return tuple(_memory(job, stage, fixed, fitted) for stage in stages_of(job, numbers))


def _memory(job: Job, stage: Stage, fixed: Fixed, fitted: Constants) -> StageMemory:
    found = moments(job, stage, fixed)
    peak = max(found, key=lambda moment: moment.total)
    return StageMemory(
        stage=stage.number,
        moments=found,
        slack=slack(job, stage, peak, fitted),
        device_constant=fitted.context_bytes,
    )
