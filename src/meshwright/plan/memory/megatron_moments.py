"""The moments of a step at which a stage of the Megatron family may need most memory."""

from dataclasses import dataclass

from meshwright.plan.engines import EngineName
from meshwright.plan.job import Job
from meshwright.plan.memory.megatron_stage import Stage, shards_sequence
from meshwright.plan.memory.report import Category, Moment
from meshwright.plan.memory.workspace import MIB, NVIDIA, WIDE, cublas_workspaces


@dataclass(frozen=True, kw_only=True)
class LossKernel:
    """Bytes per logit: all copies alive in the loss, what it saves, and the gradient that the head reads backward."""

    loss: float
    saved: float = 4
    gradient: float = 2


# Megatron-LM core/tensor_parallel/cross_entropy.py: 16-bit logits beside fp32 ones, which become the softmax in place.
PLAIN = LossKernel(loss=6)
# The same compiled (core/fusions/fused_cross_entropy.py): its note on torch.compile counts one more fp32 buffer.
COMPILED = LossKernel(loss=10)
# Transformer Engine pytorch/cross_entropy.py: logits become their own gradient.
IN_PLACE = LossKernel(loss=2, saved=2)
LOSSES: dict[EngineName, LossKernel] = {
    # nanotron parallel/tensor_parallel/functional.py: fp32 logits beside the softmax, both whole.
    "nanotron": LossKernel(loss=8),
    # transformers: fp32 logits, their shifted copy and log-probabilities.
    "deepspeed": LossKernel(loss=14, gradient=4),
    # MindFormers core/loss/loss.py: fp32 logits and softmax.
    "mindformers": LossKernel(loss=8, gradient=4),
}


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Bytes that are alike on all stages of a job.

    Attributes:
        workspace: of matrix products.
        weight_gradient: of the largest matrix of a dense layer, where it is a temporary.
    """

    workspace: float
    weight_gradient: float
    loss: LossKernel


def fixed_of(job: Job) -> Fixed:
    """What is alike on all stages of a job."""
    columns = (2 if job.network.gated else 1) * job.network.intermediate_size
    largest = 2 * job.network.hidden_size * columns / job.layout.model_parallel
    return Fixed(
        workspace=workspace(job),
        weight_gradient=0.0 if job.fused_weight_gradients else largest,
        loss=loss_kernel(job),
    )


def moments(job: Job, stage: Stage, fixed: Fixed) -> tuple[Moment, ...]:
    """Candidates for the peak, in the order of the step."""
    base = _base(job, stage, fixed)
    found = [_backward_of_layer(job, stage, base, fixed)]
    if stage.holding.last:
        found = [_loss(stage, base, fixed.loss), _backward_of_head(job, stage, base, fixed.loss), *found]
    if stage.holding.first:
        found.append(_backward_of_embedding(job, stage, base))
    step = base | {"gradients": stage.states.gradients + stage.states.copies}
    return (*found, Moment(name="optimizer step", parts=step))


def workspace(job: Job) -> float:
    """Bytes of matrix-product workspaces: cuBLAS and Transformer Engine.

    Source of the latter: ``pytorch/module/base.py`` (32 MiB from Hopper on, else 4 MiB).
    """
    family = job.cluster.device.family
    engine = (32 if family in WIDE else 4) * MIB if job.engine.name == "megatron" and family in NVIDIA else 0
    return cublas_workspaces(family, deterministic=job.deterministic) + engine


def loss_kernel(job: Job) -> LossKernel:
    """How the engine computes cross entropy."""
    if job.fused_loss:
        return IN_PLACE
    if job.compiled_loss:
        return COMPILED
    return LOSSES.get(job.engine.name, PLAIN)


def _base(job: Job, stage: Stage, fixed: Fixed) -> dict[Category, float]:
    """What is alive throughout the forward and backward passes."""
    return {
        "weights": stage.states.weights,
        "gradients": stage.states.gradients,
        "optimizer": stage.states.optimizer,
        "framework": fixed.workspace + _placeholders(job, stage),
        "communication": _buffers(job, stage),
    }


def _placeholders(job: Job, stage: Stage) -> float:
    """16-bit tensors that stand in for weight gradients which a matrix product already added to their buffers.

    Transformer Engine keeps one for every weight shape (``pytorch/module/base.py``, ``get_dummy_wgrad``).
    """
    if job.engine.name != "megatron" or not job.fused_weight_gradients or not stage.layers or job.adapter:
        return 0.0
    experts = job.network.experts
    local = experts.num_experts / job.layout.expert_parallel if experts else 1
    return 2 * (stage.layer_weights.dense + stage.layer_weights.expert / local)


def _buffers(job: Job, stage: Stage) -> float:
    """Buffers between ranks: a received input or gradient, gathered sequences, weights that ZeRO-3 gathers.

    nanotron keeps a buffer for gathered inputs and one for gathered gradients (``parallel/utils.py``, MemoryBuffer).
    """
    buffers = stage.micro.residual if job.layout.pipeline_stage > 1 else 0.0
    if shards_sequence(job):
        buffers += stage.micro.whole_residual * (2 if job.engine.name == "nanotron" else 1)
    return buffers + _zero_buffers(job, stage)


def _zero_buffers(job: Job, stage: Stage) -> float:
    """DeepSpeed's buckets of 16-bit numbers by its defaults, never more than the weights of the rank.

    Stages 1 and 2 reduce gradients and gather weights in buckets of 5e8; stage 3 holds up to 1e9 gathered weights
    (``deepspeed/runtime/zero/config.py``). Other engines gather a layer and the next one.
    """
    zero, layers = job.layout.zero_stage, stage.layers * stage.layer_weights.total
    if zero == 0 or job.layout.zero_shards == 1:
        return 0.0
    if job.engine.name in ("deepspeed", "megatron-deepspeed"):
        return 2 * min(5e8, layers) + 2 * min(1e9 if zero == 3 else 5e8, layers)
    return 2 * 2 * stage.layer_weights.total if zero == 3 else 0.0


def _loss(stage: Stage, base: dict[Category, float], kernel: LossKernel) -> Moment:
    parts = base | {
        "activations": stage.kept + 2 * stage.micro.residual * stage.predictions,
        "logits": (kernel.loss + kernel.saved * (stage.predictions - 1)) * stage.micro.logits,
    }
    return Moment(name="loss", parts=parts)


def _backward_of_head(job: Job, stage: Stage, base: dict[Category, float], kernel: LossKernel) -> Moment:
    """Gradients of the logits, of the head's weight and of its input over the whole sequence."""
    parts = base | {
        "activations": stage.kept + 2 * stage.micro.residual * stage.predictions,
        "logits": (kernel.gradient + kernel.saved * (stage.predictions - 1)) * stage.micro.logits,
        "temporaries": _vocabulary_gradient(job, stage) + stage.micro.whole_residual,
    }
    return Moment(name="backward of the head", parts=parts)


def _backward_of_layer(job: Job, stage: Stage, base: dict[Category, float], fixed: Fixed) -> Moment:
    """The last layer's feed-forward network: its first product's gradient, and gradients of the residual stream."""
    micro = stage.micro
    recomputed = micro.saved[stage.holding.sparse > 0] if stage.holding.whole else 0.0
    gradients = micro.residual + micro.whole_residual + fixed.weight_gradient
    parts = base | {
        "activations": stage.kept + recomputed,
        "temporaries": _inner_gradients(job, stage) + gradients,
    }
    return Moment(name="backward of the top layer", parts=parts)


def _backward_of_embedding(job: Job, stage: Stage, base: dict[Category, float]) -> Moment:
    """The end of one backward pass: the embedding's gradient is whole, one micro-batch is gone.

    Between synchronisations nanotron piles up 16-bit gradients of all weights until then.
    """
    piled = job.engine.name == "nanotron" and job.batch.micro_batch_num > 1
    held = stage.states.weights if piled else _vocabulary_gradient(job, stage)
    parts = base | {
        "activations": stage.kept * (stage.flying - 1) / stage.flying,
        "temporaries": held + stage.micro.whole_residual,
    }
    return Moment(name="backward of the embedding", parts=parts)


def _vocabulary_gradient(job: Job, stage: Stage) -> float:
    return 0.0 if job.adapter else 2 * stage.micro.rows * job.network.hidden_size


def _inner_gradients(job: Job, stage: Stage) -> float:
    """Gradient of the first product: of the experts with their gathered tokens, or of the dense network."""
    network, tokens = job.network, job.tokens / job.layout.model_parallel
    first = 4 if network.gated else 2
    if network.experts and stage.holding.sparse:
        routed = tokens * network.experts.experts_per_token
        return routed * (first * network.experts.intermediate_size + 2 * network.hidden_size)
    return first * network.intermediate_size * tokens
