"""Operators of a layer: seconds forward and backward, kernels launched, and what recomputation calls them."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from meshwright.plan.time.compute import matmul, streamed
from meshwright.plan.time.machine import Machine
from meshwright.plan.time.shapes import Shape
from meshwright.plan.time.traits import Traits

Kind = Literal["all", "matmul", "attention", "norm", "activation", "elementwise", "expert"]


class Operator(NamedTuple):
    """Seconds and kernel launches of one operator for one micro-batch."""

    kind: Kind
    forward: float
    backward: float
    forward_kernels: float
    backward_kernels: float


def elementwise(
    machine: Machine,
    tensor_bytes: float,
    forward_passes: float,
    backward_passes: float,
    forward_kernels: float,
    backward_kernels: float,
    kind: Kind = "elementwise",
) -> Operator:
    """An operator that reads or writes a tensor of some size a number of times in each direction."""
    return Operator(
        kind,
        streamed(machine, tensor_bytes * forward_passes, forward_kernels),
        streamed(machine, tensor_bytes * backward_passes, backward_kernels),
        forward_kernels,
        backward_kernels,
    )


def linear(
    machine: Machine, shape: Shape, traits: Traits, inputs: int, outputs: int, *, bias: bool, rows: int | None = None
) -> Iterator[Operator]:
    """A linear layer over ``rows`` tokens: product, bias, and the adding up of its weight gradient."""
    tokens = shape.tokens if rows is None else rows
    forward = matmul(machine, tokens, outputs, inputs, float8=shape.float8)
    to_inputs = matmul(machine, tokens, inputs, outputs, float8=shape.float8)
    if shape.adapter_rank:
        small = _adapter(machine, tokens, inputs, outputs, shape.adapter_rank)
        yield Operator("matmul", forward, to_inputs, 1, 1)
        yield Operator("matmul", small, 2 * small, 4, 7)
        return
    fused = shape.fused_gradients
    to_weights = matmul(machine, inputs, outputs, tokens, float8=shape.float8, accumulate=fused)
    added = 0.0 if fused else streamed(machine, traits.accumulate_bytes * inputs * outputs, 1)
    yield Operator("matmul", forward, to_inputs + to_weights + added, 1, 2 if fused else 4)
    if shape.float8:
        yield cast(machine, float(tokens) * inputs, float(tokens) * outputs)
    if bias:
        # Added in the product's epilogue or a joint kernel forward; backward sums the gradient over tokens.
        summed = streamed(machine, 2.0 * tokens * outputs)
        yield Operator("elementwise", 0.0, summed, 0 if traits.fused_elementwise else 1, 2)


def cast(machine: Machine, inputs: float, gradients: float) -> Operator:
    """8-bit copies of a product's inputs and of its result's gradients, each also transposed for the product that
    contracts over tokens (transformer_engine, Float8Quantizer): 2 bytes read and 2 written per number. Weights are cast
    once per step, which is left out."""
    return Operator("matmul", streamed(machine, 4 * inputs), streamed(machine, 4 * gradients), 2, 2)


def _adapter(machine: Machine, tokens: int, inputs: int, outputs: int, rank: int) -> float:
    """Two thin products, scaling, and the addition to the frozen layer's result."""
    thin = matmul(machine, tokens, rank, inputs) + matmul(machine, tokens, outputs, rank)
    return thin + streamed(machine, 2.0 * tokens * outputs * 3, 2)
