"""Moments around the loss: logits, what the loss makes of them, and the gradient of the head."""

from collections.abc import Iterator

from meshwright.plan.memory.fsdp_flight import Flight
from meshwright.plan.memory.fsdp_stage import Stage
from meshwright.plan.memory.fsdp_states import (
    InBackward,
    at_layer,
    gathered_weights,
    gathering,
    gathers_ahead,
    gathers_forward,
    gradients,
    leftover_reduction,
    moment,
)
from meshwright.plan.memory.report import Moment

BLOCK_ELEMENTS = {True: 2**19, False: 2**26}
"""Elements of the fp32 temporaries of the loss on a CPU and elsewhere (`meshwright.model.loss`)."""


def loss_moments(stage: Stage, flight: Flight) -> Iterator[Moment]:
    """Forward of the loss, its backward, and the backward of the head."""
    top = len(stage.layers) - 1
    at = at_layer(stage, top, flight)
    block, formats = stage.block, stage.formats
    held = (flight.live - 1) * stage.micro_batch_bytes + stage.below(top) + stage.head_bytes
    # GPipe has made the logits of all micro-batches before the first backward.
    waiting = 0.0 if stage.chunk else (flight.live - 1) * stage.logits
    weights, copies = _gathered(stage, at), stage.autocast_kept(top + 1)
    own = stage.tied_elements if at.in_place(stage) else stage.head_elements
    older = gradients(stage, at) - formats.gradient * own
    message = formats.reduced * leftover_reduction(stage, flight.later)
    forward, backward = loss_temporaries(stage)

    def now(
        name: str, *, logits: float, scratch: float, made: float = 0.0, ahead: float = 0.0, copies: float = copies
    ) -> Moment:
        return moment(
            stage,
            name,
            weights=weights + copies,
            gradients=older + made,
            activations=held - waiting,
            logits=logits + waiting,
            communication=message + ahead,
            temporaries=scratch,
        )

    forward_message = _top_group(stage) if gathers_forward(stage, flight.later) else 0.0
    ahead = _top_group(stage) if gathers_ahead(stage) and not stage.traits.last_layer_stays else 0.0
    made = formats.gradient * stage.weights.columns * block.hidden
    product = min(block.compute, formats.gradient) * stage.weights.columns * block.hidden
    # Chunks leave their gradients of the hidden states until all are there, and sum those of the head: before the cast
    # where they share one cached copy of it.
    summed = product if stage.block.tensor == 1 else made
    earlier = summed if stage.chunk else 0.0
    hidden = 2 * block.G if stage.chunk else block.G
    norm = stage.sizes.final_norm
    head_copy = copies + stage.autocast_head
    if flight == stage.in_flight[0] or not stage.pipelined:
        yield now(
            "loss",
            logits=stage.logits,
            scratch=forward,
            ahead=forward_message,
            copies=stage.autocast_forward(top + 1) + stage.autocast_head,
        )
    if ahead:
        under_way = gathering(stage, ahead)
        yield now("gathering the top layer", logits=stage.logits, scratch=0.0, ahead=under_way, copies=head_copy)
    yield now(
        "backward of the loss", logits=stage.logits, scratch=backward, made=earlier, ahead=ahead, copies=head_copy
    )
    kept_logits = stage.logits if stage.traits.loss == "in place" else 2 * stage.logits
    yield now(
        "backward of the head",
        logits=kept_logits,
        scratch=hidden,
        made=product + earlier,
        ahead=ahead,
        copies=head_copy,
    )
    if block.autocast:
        others = earlier if stage.block.tensor > 1 else 0.0
        yield now("cast of the head's gradient", logits=0.0, scratch=hidden, made=product + made + others, ahead=ahead)
    if stage.chunk:
        yield now("sum of the head's gradients", logits=0.0, scratch=block.G, made=3 * summed, ahead=ahead)
    else:
        yield now(
            "backward of the final norm", logits=0.0, scratch=norm.temporaries - norm.freed, made=made, ahead=ahead
        )


def _gathered(stage: Stage, at: InBackward) -> float:
    """Gathered weights between forward and backward."""
    if stage.zero < 3 or not stage.wrapped:
        return gathered_weights(stage, at)
    group = stage.weights.layer if stage.traits.last_layer_stays else 0.0
    return stage.formats.gathered * (stage.root + group)


def _top_group(stage: Stage) -> float:
    """Message of the top group: of its forward gather, held until the loss; then of the gather ahead of backward."""
    first, last = stage.group_of(len(stage.layers) - 1)
    return stage.formats.gathered * (last - first + 1) * stage.weights.layer


def loss_temporaries(stage: Stage) -> tuple[float, float]:
    """Bytes beside the 16-bit logits in forward and in backward of the loss."""
    tokens, columns = stage.chunk or stage.block.tokens, stage.columns
    whole = 4.0 * tokens * columns
    if stage.traits.loss == "fp32 copies" and not stage.job.fused_loss:
        # fp32 logits and log probabilities; then log probabilities and the gradients of both.
        return 2 * whole, 3 * whole - stage.logits
    if stage.traits.loss != "in place":
        return 0.0, stage.logits
    rows = max(BLOCK_ELEMENTS[stage.host] // columns, 1)
    part = min(whole, 4.0 * rows * columns)
    casts = stage.block.compute < 4
    return (1 + casts) * part, (1 + casts + (rows < tokens)) * part
