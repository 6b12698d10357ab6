"""Initial weights that are the same for every layout.

Each parameter is drawn from a generator of its own, seeded by the run's seed and the parameter's name, as a whole
tensor; a rank keeps its part. (Drawing on a sharded DTensor gives every shard the same numbers on CPU.)
"""

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from meshwright.spec.model import ModelSpec

Place = Callable[[Tensor, Tensor], None]


def parameter_seed(seed: int, name: str) -> int:
    """Seed of one parameter: 63 bits of SHA-256 over the run's seed and the name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def initial_value(spec: ModelSpec, seed: int, name: str, shape: torch.Size) -> Tensor:
    """The whole initial tensor of a parameter, fp32 on the CPU.

    Norm weights are one and biases zero; matrices are normal with ``init_std``, the two output projections of a
    block with ``init_std / sqrt(2 * num_layers)``. Rows of the vocabulary padding are zero.
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith(".bias"):
        return torch.zeros(shape)
    std = spec.init_std
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        std /= math.sqrt(2 * spec.num_layers)
    generator = torch.Generator().manual_seed(parameter_seed(seed, name))
    value = torch.empty(shape).normal_(0.0, std, generator=generator)
    if name in ("embedding.weight", "head.weight"):
        value[spec.vocab_size :] = 0
    return value


def copy_whole(parameter: Tensor, value: Tensor) -> None:
    """Write a value into a parameter that is whole."""
    parameter.copy_(value)


@torch.no_grad()
def init_weights(model: nn.Module, spec: ModelSpec, seed: int, place: Place = copy_whole) -> None:
    """Fill every parameter of ``model`` with its initial value.

    Args:
        place: writes a whole value into a parameter that may hold only a part of it.
    """
    for name, parameter in model.named_parameters():
        place(parameter, initial_value(spec, seed, name, parameter.shape))
