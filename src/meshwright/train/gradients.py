"""From the gradients of each rank to one global norm."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.parallel.mesh import Mesh
from meshwright.parallel.tensor import local, partial_gradients

TIED = "embedding.weight"


def complete_gradients(parameters: Mapping[str, Tensor], mesh: Mesh, *, tied: bool) -> None:
    """Add up what ZeRO's reductions leave partial, in place.

    Replicated weights of which each model rank has seen a share, in one message; and the two copies of a tied weight
    at the ends of a pipeline.
    """
    shares = [local(p.grad) for name, p in parameters.items() if p.grad is not None and partial_gradients(name, mesh)]
    if shares:
        flat = torch.cat([share.flatten() for share in shares])
        dist.all_reduce(flat, group=mesh.model_group)
        parts = flat.split([share.numel() for share in shares])
        torch._foreach_copy_(shares, [part.view_as(share) for part, share in zip(parts, shares, strict=True)])
    if tied and mesh.ends_group is not None and TIED in parameters:
        gradient = parameters[TIED].grad
        assert gradient is not None
        dist.all_reduce(local(gradient), group=mesh.ends_group)


def counts_here(parameter: Tensor) -> bool:
    """Whether this rank counts its part of a parameter: of the copies of a replicated part only the first does."""
    if not isinstance(parameter, DTensor):
        return True
    coordinate = parameter.device_mesh.get_coordinate()
    assert coordinate is not None
    return all(at == 0 for at, placed in zip(coordinate, parameter.placements, strict=True) if placed.is_replicate())


def second_copy(name: str, mesh: Mesh, *, tied: bool) -> bool:
    """Whether this stage holds a weight whose owner is the first stage: a tied weight counts and is saved there."""
    return tied and name == TIED and mesh.at.pipeline > 0


def counted(parameters: Mapping[str, Tensor], mesh: Mesh, *, tied: bool) -> list[Tensor]:
    """The parameters whose parts this rank counts, so that each weight of the model counts once in the world."""
    return [p for name, p in parameters.items() if counts_here(p) and not second_copy(name, mesh, tied=tied)]


def local_norm(parameters: Iterable[Tensor], norm_type: Literal[2] | float, device: torch.device) -> Tensor:
    """This rank's term of the norm: sum of squares, or the largest magnitude where ``norm_type`` is infinite."""
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), device=device)
    norms = torch.stack(torch._foreach_norm(gradients, norm_type)).float()
    return norms.max() if math.isinf(norm_type) else norms.square().sum()


def scale_gradients(parameters: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply every gradient by a 0-d factor, in place."""
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, factor)


def global_norm(
    parameters: Mapping[str, Tensor], mesh: Mesh, *, tied: bool, device: torch.device, norm_type: float = 2
) -> Tensor:
    """Norm of the whole model's gradient, the same on every rank; 0-d fp32."""
    term = local_norm(counted(parameters, mesh, tied=tied), norm_type, device)
    dist.all_reduce(term, op=dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM)
    return term if math.isinf(norm_type) else term.sqrt()
