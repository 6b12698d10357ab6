"""What the caching allocator of an accelerator reserves beyond live tensors, for the FSDP family.

A block that one stream has freed is given to that stream again and to no other (c10/cuda/CUDACachingAllocator.cpp), so
that every stream's own peak is reserved. FSDP2 runs three: compute; gathers, which own the gathered messages; and
reductions, which own the reduced gradients (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). On top come gaps
between blocks of unequal size, in proportion to what comes and goes; their shares are fitted (`constants`).
"""

from meshwright.plan.memory.constants import constants
from meshwright.plan.memory.fsdp_stage import Stage
from meshwright.plan.memory.report import Moment
from meshwright.spec.cluster import GIB


def slack(stage: Stage, peak: Moment) -> float:
    """Bytes that are reserved but not live at the peak. A CPU's allocator keeps no pools."""
    if stage.host:
        return 0.0
    fitted = constants(stage.job.engine.name, stage.job.cluster.device.family)
    share = fitted.gaps + (fitted.stream_gaps if stage.block.tensor > 1 else 0.0)
    return share * passing(peak) + streams(stage, peak) + fitted.reserve * GIB


def passing(peak: Moment) -> float:
    """Bytes at the peak that come and go on the stream of compute."""
    return sum(peak.parts.get(category, 0.0) for category in ("activations", "logits", "temporaries"))


def streams(stage: Stage, peak: Moment) -> float:
    """Pools of the gather and the reduction stream, as far as they do not live at the peak."""
    if not stage.wrapped or stage.job.adapter is not None:
        return 0.0
    return max(0.0, _reductions(stage, peak)) + max(0.0, _gathers(stage, peak))


def _reductions(stage: Stage, peak: Moment) -> float:
    """Complete gradients, which stay until the update; what lives of them at the peak is counted there."""
    pool = stage.formats.stored * stage.elements / stage.shards
    unreduced = stage.formats.gradient * (stage.weights.head + stage.weights.layer)
    return pool - max(0.0, peak.parts.get("gradients", 0.0) - unreduced)


def _gathers(stage: Stage, peak: Moment) -> float:
    """The two messages that follow each other: the first is freed once the second has been copied out."""
    if stage.shards == 1:
        return 0.0
    group = stage.fused_layers * stage.weights.layer
    first = stage.root or group
    pool = stage.formats.gathered * (first + max(stage.own_embedding, group)) + _cast(stage, first)
    return pool - peak.parts.get("communication", 0.0)


def _cast(stage: Stage, elements: float) -> float:
    """This rank's shard in the compute dtype, on its way into the message."""
    return stage.formats.gathered * elements / stage.shards if stage.formats.casts else 0.0


def context(stage: Stage) -> float:
    """Bytes outside the allocator: device context, kernels and communicators; fitted."""
    if stage.host:
        return 0.0
    return constants(stage.job.engine.name, stage.job.cluster.device.family).context_bytes
