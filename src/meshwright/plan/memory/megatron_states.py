"""Weights, gradients and optimizer states of one rank, bytes, by the rules of each framework's optimizer."""

from dataclasses import dataclass

from meshwright.plan.job import Job
from meshwright.plan.memory.megatron_weights import Weights


@dataclass(frozen=True, kw_only=True)
class States:
    """Bytes that stay for the whole step.

    Attributes:
        copies: fp32 copies of 16-bit gradients, alive during the optimizer step only.
    """

    weights: float
    gradients: float
    optimizer: float
    copies: float = 0.0

    @property
    def total(self) -> float:
        """Bytes that stay, without the copies of the optimizer step."""
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: "States") -> "States":
        return States(
            weights=self.weights + other.weights,
            gradients=self.gradients + other.gradients,
            optimizer=self.optimizer + other.optimizer,
            copies=self.copies + other.copies,
        )


def states_of(job: Job, weights: Weights, adapter: float = 0.0) -> States:
    """States of the weights on one rank; experts are sharded over the ranks that hold the same experts.

    With low-rank adapters the weights are frozen, and only ``adapter`` parameters have gradients and an optimizer.
    """
    layout = job.layout
    if job.adapter:
        trained = _sharded(job, adapter, layout.zero_shards)
        shards = layout.zero_shards if layout.zero_stage == 3 else 1
        return trained + States(weights=weights.total * job.adapter.base_bits / 8 / shards, gradients=0, optimizer=0)
    copies = layout.zero_ranks * layout.model_parallel / (layout.expert_parallel * expert_tensor(job))
    expert_shards = max(1.0, min(copies, layout.zero_shards)) if layout.zero_stage else 1.0
    return _sharded(job, weights.dense, layout.zero_shards) + _sharded(job, weights.expert, expert_shards)


def expert_tensor(job: Job) -> int:
    """Ways each expert is split over tensor ranks; all of them unless the job says otherwise."""
    return job.expert_tensor_parallel or job.layout.model_parallel


def gradient_bytes(job: Job) -> float:
    """Bytes per parameter of the gradient buffers.

    Megatron-LM accumulates in fp32 with bfloat16 and in the format of the weights with float16
    (``--accumulate-allreduce-grads-in-fp32`` is on by default only for the former, ``arguments.py``).
    nanotron keeps the 16-bit buckets of DistributedDataParallel beside its fp32 buffer (``gradient_accumulator.py``).
    Megatron-DeepSpeed adds 16-bit gradients to fp32 ones with bfloat16 (``bf16_optimizer.py``).
    """
    if job.precision.amp_level == "O0":
        return 4
    if job.engine.name == "nanotron":
        return 6 if job.layout.data_parallel > 1 else 4
    if job.precision.dtype == "float16":
        return 2
    return 6 if job.engine.name == "megatron-deepspeed" else job.engine.gradient_bytes


def _sharded(job: Job, count: float, shards: float) -> States:
    """ZeRO (arXiv:1910.02054): stage 1 shards the optimizer, 2 the gradients too, 3 the weights too."""
    stage = job.layout.zero_stage
    gradient = gradient_bytes(job)
    full = job.precision.amp_level == "O0"
    weight, optimizer = (4.0, 8.0) if full else (job.engine.weight_bytes, job.engine.optimizer_bytes)
    optimizer_share = 0.0 if job.offload_optimizer else count / (shards if stage >= 1 else 1)
    return States(
        weights=weight * count / (shards if stage >= 3 else 1),
        gradients=gradient * count / (shards if stage >= 2 else 1),
        optimizer=optimizer * optimizer_share,
        copies=4 * optimizer_share if gradient == 2 and not full else 0.0,
    )
