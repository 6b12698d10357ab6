"""Initial weights that are the same for every layout.

Each block of rows of a parameter is drawn from a generator of its own, seeded by the run's seed, the parameter's name
and the block. A rank draws only the blocks that it holds a part of. (Drawing on a sharded DTensor gives every shard
the same numbers on CPU.)
"""

import hashlib
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from meshwright.spec.model import ModelSpec

BLOCK_ROWS = 256

Rows = Callable[[int, int], Tensor]
"""Rows ``start`` to ``stop`` of a parameter's initial value, fp32 on the CPU."""

Place = Callable[[Tensor, Rows], None]

Initial = Callable[[str, torch.Size, int, int], Tensor]
"""Rows ``start`` to ``stop`` of the parameter of that name and whole shape, fp32 on the CPU."""


def derived_seed(seed: int, name: str) -> int:
    """Seed of one thing of a run: 63 bits of SHA-256 over the run's seed and the thing's name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def initial_rows(spec: ModelSpec, seed: int, name: str, shape: torch.Size, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` of a parameter's initial value, fp32 on the CPU.

    Norm weights are one and biases zero; matrices are normal with ``init_std``, the two output projections of a
    block with ``init_std / sqrt(2 * num_layers)``. Rows of the vocabulary padding are zero.
    """
    if name.endswith("norm.weight"):
        return torch.ones(stop - start)
    if name.endswith(".bias"):
        return torch.zeros(stop - start)
    std = spec.init_std
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        std /= math.sqrt(2 * spec.num_layers)
    value = torch.empty(stop - start, *shape[1:])
    for block in range(start // BLOCK_ROWS, -(-stop // BLOCK_ROWS)):
        first = block * BLOCK_ROWS
        generator = torch.Generator().manual_seed(derived_seed(seed, f"{name}:{block}"))
        drawn = torch.empty(min(BLOCK_ROWS, shape[0] - first), *shape[1:]).normal_(0.0, std, generator=generator)
        low, high = max(first, start), min(first + len(drawn), stop)
        value[low - start : high - start] = drawn[low - first : high - first]
    if name in ("embedding.weight", "head.weight"):
        value[max(spec.vocab_size - start, 0) :] = 0
    return value


def copy_whole(parameter: Tensor, rows: Rows) -> None:
    """Fill a parameter that is whole."""
    parameter.copy_(rows(0, parameter.shape[0]))


def init_weights(model: nn.Module, spec: ModelSpec, seed: int, place: Place = copy_whole) -> None:
    """Fill every parameter of ``model`` with its initial value; see `fill_weights`."""
    fill_weights(model, partial(initial_rows, spec, seed), place)


@torch.no_grad()
def fill_weights(model: nn.Module, initial: Initial, place: Place = copy_whole) -> None:
    """Fill every parameter of ``model``.

    Args:
        initial: where the values come from.
        place: fills a parameter that may hold only a part of the rows.
    """
    for name, parameter in model.named_parameters():

        def rows(start: int, stop: int, name: str = name, shape: torch.Size = parameter.shape) -> Tensor:
            return initial(name, shape, start, stop)

        place(parameter, rows)
