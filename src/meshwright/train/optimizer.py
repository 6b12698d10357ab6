"""AdamW over the parts of parameters that this rank holds.

States are named after their parameter and placed like it, so that a checkpoint of one layout loads under another. The
update runs on local tensors: the arithmetic is elementwise, and DTensor dispatch would cost more than the update.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from meshwright.parallel.tensor import local
from meshwright.spec.training import OptimizerSpec


def decays(name: str) -> bool:
    """Whether weight decay applies: to matrices, not to norm weights and biases."""
    return name.endswith(".weight") and not name.endswith("norm.weight")


class AdamW:
    """Decoupled weight decay (arXiv:1711.05101).

    Args:
        parameters: this rank's parameters by name.
        fused: use torch's fused kernel. Without it a step reads one flag back from the device.

    Attributes:
        updates: 0-d fp32, updates made so far; skipped steps do not count.
    """

    def __init__(self, parameters: Mapping[str, Tensor], spec: OptimizerSpec, *, fused: bool) -> None:
        self._spec, self._fused = spec, fused
        self.parameters = dict(parameters)
        self.exp_avg = {name: torch.zeros_like(p, requires_grad=False) for name, p in self.parameters.items()}
        self.exp_avg_sq = {name: torch.zeros_like(p, requires_grad=False) for name, p in self.parameters.items()}
        device = next(iter(self.parameters.values())).device
        self.updates = torch.zeros((), device=device)

    @torch.no_grad()
    def step(self, learning_rate: float, skip: Tensor) -> None:
        """Apply the gradients, unless ``skip`` (0-d fp32 on the device) is 1."""
        if not self._fused and bool(skip > 0):
            return
        names = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        for decay in (True, False):
            self._update([n for n in names if decays(n) is decay], learning_rate, skip, decay=decay)
        self.updates += 1 - skip

    def _update(self, names: Iterable[str], learning_rate: float, skip: Tensor, *, decay: bool) -> None:
        names = list(names)
        if not names:
            return
        # The kernel advances one counter for each tensor; they are copies of the shared one.
        steps = list(self.updates.repeat(len(names)).unbind())
        adamw(
            [local(self.parameters[n]) for n in names],
            [local(self.parameters[n].grad) for n in names],  # type: ignore[arg-type]
            [local(self.exp_avg[n]) for n in names],
            [local(self.exp_avg_sq[n]) for n in names],
            [],
            steps,
            foreach=False if self._fused else None,
            fused=self._fused,
            found_inf=skip if self._fused else None,
            amsgrad=False,
            beta1=self._spec.betas[0],
            beta2=self._spec.betas[1],
            lr=learning_rate,
            weight_decay=self._spec.weight_decay if decay else 0.0,
            eps=self._spec.eps,
            maximize=False,
        )

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by name."""
        return {
            **{f"exp_avg.{name}": state for name, state in self.exp_avg.items()},
            **{f"exp_avg_sq.{name}": state for name, state in self.exp_avg_sq.items()},
            "updates": self.updates,
        }
