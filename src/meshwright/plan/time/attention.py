"""Seconds of the attention core: scores, softmax and weighted values, without the projections around it."""

from dataclasses import dataclass

from meshwright.plan.time.compute import matmul, streamed
from meshwright.plan.time.machine import Machine

FLASH_BLOCK = 128
"""Rows of a flash attention block: blocks on the diagonal are computed whole (arXiv:2205.14135)."""
FLASH_BACKWARD = 2.5
"""Products in backward against forward: five block products instead of two (arXiv:2307.08691, section 3.1)."""
FLASH_BACKWARD_RATE = 0.85
"""Rate of the backward kernel against the forward one (arXiv:2307.08691, figures 4 and 5)."""

EFFICIENT_RATE = 0.5
"""Rate of torch's memory-efficient kernel against flash attention 2, roughly: xformers in arXiv:2307.08691, figures 4
and 5, which have no bias. Not measured here."""


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """One micro-batch of attention on one rank.

    Attributes:
        sequences: of the micro-batch.
        queries / keys: tokens per sequence on this rank, and tokens they can see.
        heads: query heads on this rank.
        score_dim / value_dim: width of one head in the scores and in the values.
        dropout: probabilities are dropped, which a materialised kernel does in a pass of its own.
    """

    sequences: int
    queries: int
    keys: int
    heads: int
    score_dim: int
    value_dim: int
    dropout: bool = False


def flash(machine: Machine, shape: AttentionShape) -> tuple[float, float]:
    """(forward, backward) seconds of a causal flash attention kernel.

    Only blocks up to the diagonal are computed; a window bounds ``keys``.
    """
    half = 0.5 * (1 + FLASH_BLOCK / max(shape.keys, FLASH_BLOCK))
    pairs = float(shape.sequences) * shape.heads * shape.queries * shape.keys * half
    forward = 2 * pairs * (shape.score_dim + shape.value_dim) / (machine.flops * machine.constants.attention)
    tokens = float(shape.sequences) * shape.queries * shape.heads * (shape.score_dim + shape.value_dim)
    moved = 4.0 * tokens / machine.bandwidth
    backward = forward * FLASH_BACKWARD / FLASH_BACKWARD_RATE
    return max(forward, moved) + machine.floor, max(backward, 2 * moved) + 3 * machine.floor


def biased(machine: Machine, shape: AttentionShape, sequence: int) -> tuple[float, float]:
    """(forward, backward) seconds of a fused kernel that adds a 16-bit bias to the scores.

    Every head reads the bias; whole rows are computed, whatever the bias hides.

    Args:
        sequence: tokens of a sequence, seen or not.
    """
    rows = float(shape.sequences) * shape.heads * shape.queries * sequence
    rate = machine.flops * machine.constants.attention * EFFICIENT_RATE
    forward = 2 * rows * (shape.score_dim + shape.value_dim) / rate
    read = 2.0 * rows / machine.bandwidth
    return max(forward, read) + machine.floor, max(forward * FLASH_BACKWARD, read) + 3 * machine.floor


def materialised(machine: Machine, shape: AttentionShape) -> tuple[float, float]:
    """(forward, backward) seconds with the [heads, queries, keys] scores written out in 16 bits.

    Megatron-LM's CoreAttention (megatron/core/transformer/dot_product_attention.py): batched product, fused
    scale-mask-softmax, dropout, batched product; whole rows are computed, causal or not.
    """
    batch = shape.sequences * shape.heads
    queries, keys = shape.queries, shape.keys
    scores = float(batch) * queries * keys
    to_scores = matmul(machine, queries, keys, shape.score_dim, batch)
    to_values = matmul(machine, queries, shape.value_dim, keys, batch)
    forward = to_scores + to_values + streamed(machine, scores * (2 + 2))
    grads = matmul(machine, queries, keys, shape.value_dim, batch) + matmul(
        machine, keys, shape.value_dim, queries, batch
    )
    grads += matmul(machine, queries, shape.score_dim, keys, batch) + matmul(
        machine, keys, shape.score_dim, queries, batch
    )
    backward = grads + streamed(machine, scores * (2 + 2 + 2))
    if shape.dropout:
        forward += streamed(machine, scores * (2 + 2 + 1))
        backward += streamed(machine, scores * (2 + 2 + 1))
    return forward, backward
