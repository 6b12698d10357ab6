"""Seconds of the optimizer step of one rank: gradient norm, clipping, Adam, and copies of the weights."""

from meshwright.plan.job import Job
from meshwright.plan.time.data_messages import expert_share
from meshwright.plan.time.machine import Machine
from meshwright.plan.time.stages import Stage
from meshwright.plan.time.traits import traits_of

TENSORS_PER_LAYER = 9
"""Weight tensors of a layer: four or three around attention, two or three in the feed-forward network, two norms."""
CLIP_BYTES = 12.0
"""Bytes per parameter of a gradient norm (4 read) and of scaling by it (4 read, 4 written)."""
HOST_ADAM_RATE = 4.0e9
"""Parameters per second that a vectorised Adam updates on one node's processors: main memory at about 110 GB/s, 28
bytes each (ZeRO-Offload's CPU-Adam, arXiv:2101.06840, is of this order)."""
HOST_LINK = 25e9
"""Bytes per second between a device and its host: PCIe 4 x16 as reached by large copies."""


def optimizer_seconds(job: Job, machine: Machine, stage: Stage) -> float:
    """Seconds of the update of what one rank of a stage owns."""
    shards = job.layout.zero_shards
    # Ranks that share out the experts hold different ones: fewer are left to share out their states.
    owned = stage.dense_weights / shards + stage.expert_weights / max(1.0, shards / expert_share(job))
    if job.adapter is not None:
        share = 2.0 * job.adapter.rank / job.network.hidden_size
        owned *= min(1.0, share)
    traits = traits_of(job.engine.name)
    moved = traits.optimizer_bytes - (0.0 if job.grad_clip else CLIP_BYTES)
    tensors = TENSORS_PER_LAYER * stage.holding.layers + 3
    launched = (20 + traits.optimizer_kernels * tensors) * machine.constants.launch
    if job.offload_optimizer:
        per_node = min(job.cluster.devices_per_node, job.layout.world_size)
        # 16-bit gradients go down and 16-bit weights come back.
        return owned * per_node / HOST_ADAM_RATE + owned * 4 / HOST_LINK + launched
    return owned * moved / machine.bandwidth + launched
