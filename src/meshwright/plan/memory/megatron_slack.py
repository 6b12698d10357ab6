"""What PyTorch's caching allocator reserves beyond live tensors."""

from meshwright.plan.job import Job
from meshwright.plan.memory.constants import Constants
from meshwright.plan.memory.megatron_stage import Stage
from meshwright.plan.memory.report import Moment
from meshwright.spec.cluster import GIB


def slack(job: Job, stage: Stage, peak: Moment, fitted: Constants) -> float:
    """Bytes that are reserved but not live at the peak: gaps between blocks of unequal size, in proportion to what
    comes and goes, and what waits for another stream.

    When a request cannot be met, PyTorch waits for the streams and tries again, so that what waits never exceeds what
    is free.
    """
    share = fitted.gaps + (fitted.stream_gaps if job.layout.model_parallel > 1 else 0.0)
    passing = peak.parts.get("activations", 0.0) + peak.parts.get("logits", 0.0)
    gaps = share * passing + fitted.reserve * GIB
    free = job.cluster.device.memory_bytes - fitted.context_bytes - peak.total - gaps
    return gaps + max(0.0, min(fitted.backlog * backlog(job, stage), free - 1))


def backlog(job: Job, stage: Stage) -> float:
    """Full-sequence tensors that reduce-scatters of tensor parallelism still read, two for each layer.

    The host runs ahead of the device through one micro-batch, or through the forward passes that fill a pipeline
    whose messages do not make it wait; measured runs of two stages show none.
    """
    if job.layout.model_parallel == 1 or (job.blocking_pipeline and job.layout.pipeline_stage > 1):
        return 0.0
    ahead = 1.0 if job.layout.pipeline_stage == 1 else max(0.0, stage.flying - 2)
    return 2 * stage.layers * ahead * (stage.micro.whole_residual - stage.micro.residual)
