"""Numeric formats: where weights, activations, gradients and optimizer states live in 16 bits.

| level | weights stored | compute  | gradients reduced | optimizer states |
|-------|----------------|----------|-------------------|------------------|
| O0    | fp32           | fp32     | fp32              | fp32             |
| O1    | fp32           | autocast | fp32              | fp32             |
| O2    | fp32 (master)  | 16 bits  | fp32              | fp32             |
| O3    | 16 bits        | 16 bits  | 16 bits           | 16 bits          |

Norms, softmax and loss are computed in fp32 at every level.
"""

from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from meshwright.parallel.devices import TORCH_DTYPES, DeviceKind, supports_bfloat16
from meshwright.spec.training import ComputeDtype, Precision

INITIAL_SCALE = 65536.0
GROWTH_INTERVAL = 2000


@dataclass(frozen=True, kw_only=True)
class Formats:
    """A precision level made concrete for one device.

    Attributes:
        stored: dtype of the parameters that the optimizer updates.
        compute: dtype of matrix products.
        hidden: dtype of hidden states between blocks and stages.
        reason: one line that says what was chosen and why.
    """

    stored: torch.dtype
    compute: torch.dtype
    hidden: torch.dtype
    autocast: bool
    policy: MixedPrecisionPolicy
    reason: str


def formats(precision: Precision, kind: DeviceKind) -> Formats:
    """Choose the formats of a run and say why."""
    level = precision.amp_level
    if level == "O0":
        fp32 = torch.float32
        policy = MixedPrecisionPolicy()
        return Formats(
            stored=fp32, compute=fp32, hidden=fp32, autocast=False, policy=policy, reason="float32 (amp_level O0)"
        )
    name, why = _sixteen_bits(precision, kind)
    dtype = TORCH_DTYPES[name]
    return Formats(
        stored=dtype if level == "O3" else torch.float32,
        compute=dtype,
        hidden=torch.float32 if level == "O1" else dtype,
        autocast=level == "O1",
        policy=_policy(level, dtype),
        reason=f"{name} (amp_level {level}, {why})",
    )


def _sixteen_bits(precision: Precision, kind: DeviceKind) -> tuple[ComputeDtype, str]:
    if precision.dtype != "auto":
        return precision.dtype, "amp_config.dtype"
    if supports_bfloat16(kind):
        return "bfloat16", f"dtype auto: {kind.name} supports it"
    return "float16", f"dtype auto: {kind.name} has no bfloat16"


def _policy(level: str, dtype: torch.dtype) -> MixedPrecisionPolicy:
    if level != "O2":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def apply_autocast(model: nn.Module, device_type: str, chosen: Formats) -> None:
    """Run the forward pass of ``model`` under autocast where the level asks for it."""
    if not chosen.autocast:
        return
    forward = model.forward

    @wraps(forward)
    def autocast_forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, dtype=chosen.compute):
            return forward(*args, **kwargs)

    model.forward = autocast_forward  # type: ignore[method-assign]


class LossScale:
    """Factor on the loss that keeps small fp16 gradients from vanishing (arXiv:1710.03740).

    The dynamic scale halves after an overflow and doubles after 2000 good steps; both happen on the device, so that
    no step waits for the host.

    Attributes:
        scale: 0-d fp32, the factor of the next step.
        good_steps: 0-d int64, steps since the last change.
    """

    def __init__(self, precision: Precision, compute: torch.dtype, device: torch.device) -> None:
        scaled = compute == torch.float16
        self.dynamic = scaled and precision.loss_scale == "dynamic"
        fixed = float(precision.loss_scale) if scaled and isinstance(precision.loss_scale, int | float) else 1.0
        self.scale = torch.tensor(INITIAL_SCALE if self.dynamic else fixed, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, overflow: Tensor) -> None:
        """Adapt to the step just made; ``overflow`` is a 0-d fp32 flag that all ranks share."""
        if not self.dynamic:
            return
        overflowed = overflow > 0
        self.good_steps = torch.where(overflowed, 0, self.good_steps + 1)
        grow = self.good_steps >= GROWTH_INTERVAL
        self.scale = torch.where(overflowed, self.scale / 2, torch.where(grow, self.scale * 2, self.scale))
        self.good_steps = torch.where(grow, 0, self.good_steps)

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "good_steps": self.good_steps}
