"""One optimizer step: from a batch to new weights.

Read from top to bottom, this is the story of a training step on one rank. Nothing in it waits for the host: whether a
step counts is decided on the device, by numbers that all ranks share.
"""

from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.data.loader import Batch
from meshwright.model.decoder import Decoder
from meshwright.model.loss import IGNORE_INDEX
from meshwright.parallel.apply import Executor
from meshwright.parallel.mesh import Mesh
from meshwright.parallel.precision import LossScale
from meshwright.train.gradients import complete_gradients, global_norm, scale_gradients
from meshwright.train.optimizer import AdamW


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """What one rank needs to make a step.

    Attributes:
        halted: 0-d fp32; 1 after a value that training cannot go on from. No weight changes any more.
        grad_clip: largest global gradient norm, or None.
        tied: the head is the embedding.
    """

    model: Decoder
    executor: Executor
    optimizer: AdamW
    loss_scale: LossScale
    mesh: Mesh
    device: torch.device
    halted: Tensor
    grad_clip: float | None
    tied: bool


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What a step came to, as 0-d tensors on the device, equal on all ranks.

    Attributes:
        loss: mean over the supervised tokens of the global batch.
        grad_norm: before clipping, without loss scale.
        tokens: supervised tokens of the global batch.
        skipped: 1 where the weights did not change.
        scale: the loss scale used.
        halted: 1 where training cannot go on.
    """

    loss: Tensor
    grad_norm: Tensor
    tokens: Tensor
    skipped: Tensor
    scale: Tensor
    halted: Tensor

    def stacked(self) -> Tensor:
        """All numbers as one fp32 [6] tensor, in the order of the fields."""
        return torch.stack([getattr(self, field.name) for field in fields(self)])


def train_step(state: TrainState, batch: Batch, learning_rate: float) -> StepOutcome:
    """Forward, backward and update over one global batch.

    Args:
        batch: this rank's sequences; ranks that differ in nothing but model or pipeline coordinates get the same.
        learning_rate: of this step.
    """
    tokens = supervised_tokens(state, batch.labels)
    scale = state.loss_scale.scale
    weight = scale / tokens.clamp(min=1)
    loss = state.executor.forward_backward(batch.tokens, batch.labels, weight, batch.positions)
    loss = sum_over_world(state, loss) / scale

    parameters = state.optimizer.parameters
    complete_gradients(parameters, state.mesh, tied=state.tied)
    scaled_norm = global_norm(parameters, state.mesh, tied=state.tied, device=state.device)
    norm = scaled_norm / scale

    overflow = not_finite(norm)
    stop = not_finite(loss) if state.loss_scale.dynamic else torch.maximum(not_finite(loss), overflow)
    state.halted.copy_(torch.maximum(state.halted, stop))
    skip = torch.stack((overflow, state.halted, (tokens == 0).float())).amax()

    factor = 1 / scale
    if state.grad_clip is not None:
        factor = factor * (state.grad_clip / (norm + 1e-6)).clamp(max=1.0)
    scale_gradients(parameters.values(), factor)
    state.optimizer.step(learning_rate, skip)
    state.optimizer.zero_grad()
    state.loss_scale.update(overflow)
    return StepOutcome(loss=loss, grad_norm=norm, tokens=tokens, skipped=skip, scale=scale, halted=state.halted.clone())


def evaluate_batch(state: TrainState, batch: Batch) -> tuple[Tensor, Tensor]:
    """Sum of token losses and number of supervised tokens of one global batch, equal on all ranks."""
    tokens = supervised_tokens(state, batch.labels)
    loss_sum = state.executor.evaluate(batch.tokens, batch.labels, batch.positions)
    return sum_over_world(state, loss_sum), tokens


def supervised_tokens(state: TrainState, labels: Tensor) -> Tensor:
    """Supervised tokens of the global batch; 0-d fp32, equal on all ranks."""
    tokens = (labels != IGNORE_INDEX).sum().float()
    dist.all_reduce(tokens, group=state.mesh.zero_group)
    return tokens


def sum_over_world(state: TrainState, value: Tensor) -> Tensor:
    """Sum of a value that ranks of one model group share, over data ranks and stages."""
    total = value if state.mesh.at.model == 0 else torch.zeros_like(value)
    total = total.clone()
    dist.all_reduce(total)
    return total


def not_finite(value: Tensor) -> Tensor:
    """1 where a 0-d value is infinite or not a number, else 0; fp32."""
    return (~torch.isfinite(value)).float()
