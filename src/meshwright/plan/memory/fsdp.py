"""Peak memory of the FSDP family: Meshwright, torchtitan, Composer and LitGPT.

The peak of a stage is the largest of its candidate moments: gathering, loss and its backward, the head, backward and
reduction of the layers between which memory is linear, the embedding, the last reductions, the update. Each is a sum
of what lives then, in bytes:

- weights: this rank's shard as stored, and the gathered copies that ZeRO-1 and 2 keep for the step, ZeRO-3 for a group;
- gradients: by ZeRO stage accumulated whole or sharded, and those that wait for the rest of their group;
- optimizer: two states as large as the shard;
- activations: what each layer keeps (`decoder_block`), by micro-batches in flight, less what backward has dropped;
- logits and temporaries: of the loss (`fsdp_loss`) and of a block's backward (`block_backward`);
- communication: messages of gathers and reductions, receive buffers of a pipeline.

tests/distributed/memory_rows.py holds the sum for Meshwright against the allocator's events of real steps. What an
accelerator reserves on top is in `allocator`.
"""

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
