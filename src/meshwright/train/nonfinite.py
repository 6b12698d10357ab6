"""Finding where a number stopped being finite.

The step that went wrong changed no weight, so running its batch again meets the same values; hooks then tell which
module produced the first bad one.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.data.loader import Batch
from meshwright.launch.failure import set_position
from meshwright.model.loss import IGNORE_INDEX
from meshwright.parallel.tensor import local
from meshwright.train.step import TrainState


class NonFiniteError(RuntimeError):
    """Training met a loss or gradient that is infinite or not a number, and stopped before any weight took it."""


@dataclass(frozen=True, kw_only=True, order=True)
class Finding:
    """The first bad value on one rank.

    Forward comes before backward and earlier stages before later ones. Tensor-parallel ranks see a bad value
    together, since they add up their parts: the one whose weights are bad comes first.
    """

    phase_order: int
    stage: int
    weights_finite: bool
    rank: int
    phase: str
    module: str


class _Watch:
    """Hooks on every module that note the first non-finite output and, in backward, the first such gradient."""

    def __init__(self, model: nn.Module) -> None:
        self.forward: str | None = None
        self.backward: str | None = None
        self.weights_finite = True
        self._handles = [
            module.register_forward_hook(self._hook(name))
            for name, module in model.named_modules()
            if name and not list(module.children())
        ]

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, _args: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return
            # Detached: recomputation counts the tensors that autograd keeps, and must not meet ours.
            if self.forward is None and not torch.isfinite(output.detach()).all():
                self.forward = name
                self.weights_finite = all(bool(torch.isfinite(local(p.detach())).all()) for p in module.parameters())
            if output.requires_grad:
                output.register_hook(lambda grad: self._backward(name, grad))

        return hook

    def _backward(self, name: str, grad: Tensor) -> None:
        if self.backward is None and not torch.isfinite(grad).all():
            self.backward = name

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def locate(state: TrainState, batch: Batch, step: int) -> Finding | None:
    """Run the bad batch again on all ranks and return the first finding, or None where it did not come back.

    Collective: every rank calls it with its part of the batch.
    """
    set_position(step, "locate non-finite")
    weight = 1.0 / (batch.labels != IGNORE_INDEX).sum().clamp(min=1)
    watch = _Watch(state.model)
    try:
        # Compiled code would run on without the hooks.
        with torch.compiler.set_stance("force_eager"):
            scaled = state.loss_scale.scale * weight
            state.executor.forward_backward(batch.tokens, batch.labels, scaled, batch.positions)
    finally:
        watch.remove()
        state.optimizer.zero_grad()
    rank, stage = dist.get_rank(), state.mesh.at.pipeline
    mine = None
    if watch.forward is not None:
        mine = Finding(
            phase_order=0,
            stage=stage,
            weights_finite=watch.weights_finite,
            rank=rank,
            phase="forward",
            module=watch.forward,
        )
    elif watch.backward is not None:
        mine = Finding(
            phase_order=1, stage=-stage, weights_finite=True, rank=rank, phase="backward", module=watch.backward
        )
    everyone: list[Finding | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return min((finding for finding in everyone if finding is not None), default=None)


def explain(finding: Finding | None, step: int, loss: float, norm: float) -> str:
    """The message of a stopped run."""
    what = f"step {step}: loss {loss:g}, gradient norm {norm:g}; no weight was changed by it"
    if finding is None:
        return f"{what}. Running the batch again gave finite module outputs: the value came from the loss itself"
    why = "" if finding.weights_finite else ", whose weights are not finite"
    return f"{what}. First bad value: rank {finding.rank}, {finding.phase} of module {finding.module}{why}"
