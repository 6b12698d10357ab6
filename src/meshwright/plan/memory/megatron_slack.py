"""What PyTorch's caching allocator reserves beyond live tensors."""

from meshwright.plan.job import Job
from meshwright.plan.memory.constants import Constants
from meshwright.plan.memory.megatron_stage import Stage
from meshwright.plan.memory.report import Moment


def slack(job: Job, stage: Stage, peak: Moment, fitted: Constants) -> float:
    """Bytes that are reserved but not live at the peak.

    Blocks of unequal size leave gaps, in proportion to what comes and goes. Without a pipeline the host runs far
    ahead of the device, and full-sequence tensors that reduce-scatters still read pile up (two for each layer).
    """
    ahead = job.layout.pipeline_stage == 1 and job.layout.model_parallel > 1
    backlog = 2 * stage.layers * (stage.whole_residual - stage.residual) if ahead else 0.0
    return (
        fitted.activation_slack * peak.parts.get("activations", 0.0)
        + fitted.logits_slack * peak.parts.get("logits", 0.0)
        + fitted.backlog * backlog
    )
