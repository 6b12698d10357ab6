"""How memory rises and falls over the backward pass of one block.

The order of allocations and frees is that of torch's autograd engine over `meshwright.model.decoder.Block`: saved
tensors are dropped after the node that used them has run, gradients of activations when they have been consumed.
Letters are those of `decoder_block`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from meshwright.plan.memory.decoder_block import Block, Keep, dropout_mask, head_input, head_norm_ops, kept, remade

Event = tuple[float, float, float]
"""Change of temporaries, of dropped saved tensors, and of weight gradients (elements)."""


class Pass(NamedTuple):
    """Backward of one block, relative to its beginning, at the moment that needs most.

    Attributes:
        temporaries: gradients of activations and scratch, the incoming gradient included.
        freed: saved tensors already dropped.
        gradients: weight gradients already made.
    """

    temporaries: float
    freed: float
    gradients: float

    @property
    def rise(self) -> float:
        """Bytes above the beginning."""
        return self.temporaries - self.freed + self.gradients


def _product_backward(b: Block, made: float, weight: float, consumed: float, dropped: float) -> list[Event]:
    """A projection's gradients: ``made`` bytes of its input's, and ``weight`` elements of its weight's.

    Under autocast the latter is made in the compute dtype beside the weight's copy, and cast when that is gone.

    Args:
        consumed: temporaries that nothing reads after it.
        dropped: saved tensors likewise.
    """
    if not b.autocast:
        return [(made, 0, weight), (-consumed, dropped, 0)]
    copy = weight * b.compute
    return [(made + copy, 0, 0), (-consumed, copy + dropped, weight), (-copy, 0, 0)]


def _leave_backward(b: Block) -> list[Event]:
    """Gradient of the residual stream to the gradient of a row-wise projection's output."""
    if b.sequence == 1:
        return []
    return [(b.G + b.gloo * b.n, 0, 0), (b.G - b.gloo * b.n, 0, 0), (-b.G, 0, 0)]


def _enter_backward(b: Block) -> list[Event]:
    """Gradient of the gathered norm output to that of this rank's part; a sum over the tensor group without one."""
    if b.tensor == 1:
        return []
    if b.sequence == 1:
        return [(b.G, 0, 0), (-b.G, 0, 0)]
    return [(b.G, 0, 0), (b.n + b.gloo * b.G, 0, 0), (-(2 + b.gloo) * b.G, 0, 0)]


def _norm_backward(b: Block) -> list[Event]:
    """Gradient of the norm output to that added to the residual gradient; begins with the former alive."""
    cast: list[Event] = [] if b.compute == 4 else [(b.R32, 0, 0), (-b.n, 0, 0)]
    back: list[Event] = [] if b.residual == 4 else [(b.R, 0, 0), (-b.R32, 0, 0)]
    own = 0.0 if b.residual == 4 else b.R32
    if b.norm == "fused":
        return [(b.R, 0, 0), (-b.n, b.R, 0), (-b.R, 0, 0)]
    if b.norm == "cast":
        return [*cast, (b.R32, 0, 0), (-b.R32, own or b.R, 0), *back, (-b.R, 0, 0)]
    if b.norm == "upcast":
        scale: list[Event] = [(2 * b.n, 0, 0), (-2 * b.n, b.n, 0), *cast]
    else:
        scale = [*cast, (2 * b.R32, 0, 0), (-2 * b.R32, b.R32, 0)]
    return [
        *scale,
        (2 * b.R32, 0, 0),
        (-2 * b.R32, 0, 0),
        (4 * b.R32, 0, 0),
        (-4 * b.R32, own or b.R, 0),
        *back,
        (-b.R, 0, 0),
    ]


def _head_norm_backward(b: Block, size: float) -> list[Event]:
    # What attention reads is dropped with the rest of its inputs.
    own = [op for op in head_norm_ops(b, "", size) if op.kept and not op.name.endswith("scaled")]
    saved = sum(op.size for op in own) + (size if b.projections_read else 0.0)
    wide = (5 if b.norm == "decomposed" else 2) * size * 4 / b.compute
    return [(wide, 0, 0), (-wide, saved, 0)]


def _dropout_backward(b: Block) -> list[Event]:
    return [(b.R, 0, 0), (-b.R, dropout_mask(b), 0)] if b.dropout else []


def _feed_forward_backward(b: Block) -> list[Event]:
    weight, whole = b.hidden * b.inner, b.G if b.sequence > 1 else 0.0
    head = [*_leave_backward(b), *_product_backward(b, b.F, weight, whole, b.F)]
    if not b.gated:
        return [*head, (b.F, 0, 0), (-b.F, b.F, 0), *_product_backward(b, b.G, weight, b.F, b.G)]
    return [
        *head,
        (2 * b.F, 0, 0),
        (-b.F, 2 * b.F, 0),
        *_product_backward(b, b.G, weight, b.F, 0.0),
        (b.F, 0, 0),
        (-b.F, b.F, 0),
        *_product_backward(b, b.G, weight, b.F, b.G),
        (b.G, 0, 0),
        (-2 * b.G, 0, 0),
    ]


def _rope_backward(size: float) -> list[Event]:
    return [(2.5 * size, 0, 0), (-size, 0, 0), (size, 0, 0), (-2.5 * size, 0, 0)]


def _attention_backward(b: Block) -> list[Event]:
    keys = b.Q if b.expand_keys else b.K
    # FlashAttention-2 accumulates the query gradient in fp32 (flash_api.cpp, dq_accum).
    scratch = 0.0 if b.gloo else 4 * b.Q / b.compute
    folded: list[Event] = [(2 * b.K, 0, 0), (-2 * b.Q, 0, 0)] if b.expand_keys else []
    rope = [*_rope_backward(b.K), *_rope_backward(b.Q)] if b.rope else []
    norms = [*_head_norm_backward(b, b.K), *_head_norm_backward(b, b.Q)] if b.qk_norm else []
    return [
        *_leave_backward(b),
        *_product_backward(b, b.Q, b.hidden * b.query, b.G if b.sequence > 1 else 0.0, 0.0),
        (b.Q + 2 * keys + scratch, 0, 0),
        (-b.Q - scratch, 2 * b.Q + 2 * keys + b.statistics, 0),
        *folded,
        *rope,
        *norms,
        *_product_backward(b, b.G, b.hidden * b.key_value, b.K, b.tables),
        *_product_backward(b, b.G, b.hidden * b.key_value, b.K, 0.0),
        (b.G, 0, 0),
        (-2 * b.G, 0, 0),
        *_product_backward(b, b.G, b.hidden * b.query, b.Q, b.G),
        (-b.G, 0, 0),
    ]


def backward_events(b: Block) -> tuple[Event, ...]:
    """Rise and fall of memory over the backward pass of a block whose saved tensors are all there."""
    return (
        (b.R, 0, 0),
        *_dropout_backward(b),
        *_feed_forward_backward(b),
        *_enter_backward(b),
        *_norm_backward(b),
        *_dropout_backward(b),
        *_attention_backward(b),
        *_enter_backward(b),
        *_norm_backward(b),
    )


def backward_pass(b: Block, gradients_stay: bool) -> Pass:
    """The worst moment of the backward pass.

    Args:
        gradients_stay: weight gradients live on; otherwise each is added to an older one and dropped.
    """
    return _worst(b, backward_events(b), gradients_stay)


def recompute_begins(b: Block, keep: Keep) -> Pass:
    """The worst moment before a block makes its dropped tensors again, which the first node that reads one starts.

    Kept results that nothing reads are still there then, unlike at the beginning of `backward_pass`.
    """
    worst = _worst(b, ((b.R, 0, 0), *_dropout_backward(b), *_leave_backward(b)), True)
    return worst._replace(freed=worst.freed + remade(b, keep) - kept(b, keep))


def final_norm_pass(b: Block) -> Pass:
    """The worst moment of the backward pass of the final norm, from the gradient that the head gives it."""
    return _worst(b, ((b.G, 0, 0), *_enter_backward(b), *_norm_backward(b)), True)


def _worst(b: Block, events: tuple[Event, ...], gradients_stay: bool) -> Pass:
    temporaries = freed = elements = 0.0
    best, worst = Pass(0, 0, 0), -1.0
    for temporary, dropped, made in events:
        temporaries, freed, elements = temporaries + temporary, freed + dropped, elements + made
        gradient = (elements if gradients_stay else made) * b.weight_gradient
        if temporaries - freed + gradient > worst:
            worst, best = temporaries - freed + gradient, Pass(temporaries, freed, gradient)
    return best


@dataclass(frozen=True, kw_only=True)
class BlockMemory:
    """Bytes of one block and one micro-batch.

    Attributes:
        kept: until backward, by a layer that is not recomputed whole; ``kept_whole`` by one that is.
        remade: by either, once backward has made what was dropped again.
        backward: the worst moment where weight gradients stay; ``backward_in_place`` where they are added to others.
        begins: the worst moment before anything is remade, by a layer that is not recomputed whole.
        head: from the final norm to its backward; ``final_norm`` is the worst moment of that.
    """

    kept: float
    kept_whole: float
    remade: float
    remade_whole: float
    backward: Pass
    backward_in_place: Pass
    begins: Pass
    head: float
    final_norm: Pass


@lru_cache(maxsize=4096)
def block_memory(b: Block, keep: Keep) -> BlockMemory:
    """What a block needs whose layers keep ``keep`` unless they are recomputed whole."""
    return BlockMemory(
        kept=kept(b, keep),
        kept_whole=kept(b, "input"),
        remade=remade(b, keep),
        remade_whole=remade(b, "input"),
        backward=backward_pass(b, True),
        backward_in_place=backward_pass(b, False),
        begins=recompute_begins(b, keep),
        head=head_input(b),
        final_norm=final_norm_pass(b),
    )
