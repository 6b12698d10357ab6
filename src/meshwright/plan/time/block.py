"""Device time and kernel launches of one transformer layer on one rank, operator by operator."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from meshwright.plan.network import Network
from meshwright.plan.time.attention import AttentionShape, biased, flash, materialised
from meshwright.plan.time.compute import matmul, streamed
from meshwright.plan.time.experts import expert_operators
from meshwright.plan.time.machine import Machine
from meshwright.plan.time.operators import Kind, Operator, elementwise, linear
from meshwright.plan.time.shapes import Shape, attention_products, feed_forward_products
from meshwright.plan.time.traits import Traits

ROPE_PASSES = 10
"""Reads and writes of rotated numbers by unfused rotary embedding: two slices, a negation, a concatenation, two
products and a sum."""


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """Seconds on the device and kernels launched by one micro-batch through one layer.

    Attributes:
        recompute: of the operators that run again in backward.
        attention_forward / attention_backward: part of it in the attention core, behind which a ring's messages travel.
    """

    forward: float
    backward: float
    recompute: float
    forward_kernels: float
    backward_kernels: float
    recompute_kernels: float
    attention_forward: float
    attention_backward: float


@lru_cache(maxsize=8192)
def layer_cost(
    machine: Machine, network: Network, shape: Shape, traits: Traits, sparse: bool, again: tuple[Kind, ...]
) -> LayerCost:
    """Cost of one layer.

    Args:
        sparse: the layer has experts instead of a dense feed-forward network.
        again: kinds of operators that run a second time in backward; ``all`` is the whole layer.
    """
    operators = tuple(_operators(machine, network, shape, traits, sparse))
    repeated = [op for op in operators if "all" in again or op.kind in again]
    return LayerCost(
        forward=sum(op.forward for op in operators),
        backward=sum(op.backward for op in operators),
        recompute=sum(op.forward for op in repeated),
        forward_kernels=sum(op.forward_kernels for op in operators),
        backward_kernels=sum(op.backward_kernels for op in operators),
        recompute_kernels=sum(op.forward_kernels for op in repeated),
        attention_forward=sum(op.forward for op in operators if op.kind == "attention"),
        attention_backward=sum(op.backward for op in operators if op.kind == "attention"),
    )


def _operators(machine: Machine, network: Network, shape: Shape, traits: Traits, sparse: bool) -> Iterator[Operator]:
    yield _norm(machine, network, shape)
    products = attention_products(network, shape.tensor)
    for inputs, outputs in products[:-1]:
        yield from linear(machine, shape, traits, inputs, outputs, bias=network.bias or network.qkv_bias)
    yield from _around_attention(machine, network, shape, traits)
    yield _attention(machine, network, shape, traits)
    yield from linear(machine, shape, traits, *products[-1], bias=network.bias)
    yield from _residual(machine, network, shape, traits)
    yield _norm(machine, network, shape)
    if sparse:
        yield from expert_operators(machine, network, shape, traits)
    else:
        yield from _feed_forward(machine, network, shape, traits)
    yield from _residual(machine, network, shape, traits)


def _norm(machine: Machine, network: Network, shape: Shape) -> Operator:
    # Forward reads and writes the residual stream; backward reads input and gradient and writes one.
    return elementwise(machine, shape.residual_tokens * network.hidden_size * 2, 2, 3, 1, 2, kind="norm")


def _residual(machine: Machine, network: Network, shape: Shape, traits: Traits) -> Iterator[Operator]:
    moved = shape.residual_tokens * network.hidden_size * 2
    dropout = network.dropout > 0 or traits.default_dropout
    if traits.fused_elementwise or shape.compiled or not dropout:
        # x + residual, with dropout's byte masks where there is dropout; backward adds two gradients.
        mask = 0.5 if dropout else 0.0
        yield elementwise(machine, moved, 3 + mask, 3 + (2 + mask if dropout else 0), 1, 2 if dropout else 1)
        return
    yield elementwise(machine, moved, 2.5 + 3, 2.5 + 3, 2, 2)


def _around_attention(machine: Machine, network: Network, shape: Shape, traits: Traits) -> Iterator[Operator]:
    rotated = network.query_width + network.kv_width
    if network.latent is not None:
        rotated = network.num_heads * network.latent.rope_head_dim
    moved = shape.tokens * rotated / shape.tensor * 2.0
    if network.position == "rope":
        passes, kernels = (2, 2) if traits.fused_rope or shape.compiled else (ROPE_PASSES, 10)
        yield elementwise(machine, moved, passes, passes, kernels, kernels)
    if network.qk_norm:
        yield elementwise(machine, moved, 2, 3, 2, 4, kind="norm")
    # Queries, keys and values leave one product side by side and are copied apart, or into the kernel's order; latent
    # attention joins the rotated part to each head of queries and keys.
    width = network.query_width + 2 * network.kv_width
    if network.latent is not None:
        latent = network.latent
        width = network.num_heads * (2 * (latent.nope_head_dim + latent.rope_head_dim) + latent.value_head_dim)
    copies = 2 if shape.flash else 4
    yield elementwise(machine, shape.tokens * width / shape.tensor * 2.0, copies, copies, 3, 3)


def _attention(machine: Machine, network: Network, shape: Shape, traits: Traits) -> Operator:
    latent = network.latent
    score_dim = latent.nope_head_dim + latent.rope_head_dim if latent else network.head_dim
    core = AttentionShape(
        sequences=shape.sequences,
        queries=max(1, shape.seq_length // shape.context),
        keys=min(shape.seq_length, network.window or shape.seq_length),
        heads=max(1, network.num_heads // shape.tensor),
        score_dim=score_dim,
        value_dim=latent.value_head_dim if latent else network.head_dim,
        dropout=network.dropout > 0 or traits.default_dropout,
    )
    if shape.biased:
        forward, backward = biased(machine, core, shape.seq_length)
    elif shape.flash:
        forward, backward = flash(machine, core)
    else:
        forward, backward = materialised(machine, core)
    kernels = (2, 4) if shape.flash else (6, 10)
    return Operator("attention", forward, backward, *kernels)


def _feed_forward(machine: Machine, network: Network, shape: Shape, traits: Traits) -> Iterator[Operator]:
    up, down = feed_forward_products(network, network.intermediate_size, shape.tensor)
    yield from linear(machine, shape, traits, *up, bias=network.bias)
    yield activation(machine, network, shape, traits, shape.tokens * down[0])
    yield from linear(machine, shape, traits, *down, bias=network.bias)


def activation(machine: Machine, network: Network, shape: Shape, traits: Traits, numbers: float) -> Operator:
    """The activation over ``numbers`` inner elements on this rank.

    SwiGLU reads two and writes one in one kernel, and reads three and writes two in backward; in separate kernels
    silu (2) and the product (3), and three kernels of 3 in backward.
    """
    fused = traits.fused_elementwise or shape.compiled
    if network.gated:
        passes, kernels = ((3, 5), (1, 1)) if fused else ((5, 9), (2, 3))
    else:
        passes, kernels = (2, 3), (1, 1)
    return elementwise(machine, numbers * 2, *passes, *kernels, kind="activation")


def embedding_cost(machine: Machine, network: Network, shape: Shape) -> tuple[float, float]:
    """(forward, backward) seconds of the embedding: rows gathered, and gradients scattered into fp32 or 16 bits."""
    moved = shape.tokens * network.hidden_size * 2.0
    return streamed(machine, 2 * moved, 2), streamed(machine, 4 * moved, 4)


def head_cost(machine: Machine, network: Network, shape: Shape, traits: Traits, vocabulary: int) -> tuple[float, float]:
    """(forward, backward) seconds of final norm, logits and cross entropy over the rank's share of the vocabulary."""
    columns = vocabulary // shape.tensor
    norm = _norm(machine, network, shape)
    hidden = network.hidden_size
    forward = matmul(machine, shape.tokens, columns, hidden, float8=False)
    backward = matmul(machine, shape.tokens, hidden, columns)
    if not shape.adapter_rank:
        backward += matmul(machine, hidden, columns, shape.tokens, accumulate=shape.fused_gradients)
    ahead, behind = _loss_bytes(shape, traits)
    logits = float(shape.tokens) * columns
    forward += norm.forward + streamed(machine, ahead * logits, 6)
    return forward, backward + norm.backward + streamed(machine, behind * logits, 3)


def _loss_bytes(shape: Shape, traits: Traits) -> tuple[float, float]:
    """Bytes that cross entropy moves per logit, forward and backward.

    In one kernel: reads and writes 16 bits. Unfused, as in Megatron's vocab_parallel_cross_entropy and torch's
    cross_entropy over fp32 logits: cast (2 + 4), maximum (4), shift (8), exponent (8), sum (4), division (8); backward
    scales (8) and casts (4 + 2). Compiled, shift, exponent and sum share a pass.
    """
    if traits.fused_loss or shape.fused_loss or shape.compiled:
        return 4.0, 4.0
    return (22.0, 14.0) if shape.compiled_loss else (38.0, 14.0)
