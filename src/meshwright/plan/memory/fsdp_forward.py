"""Moments of the forward pass before the loss."""

from collections.abc import Iterator

from meshwright.plan.memory.fsdp_flight import Flight
from meshwright.plan.memory.fsdp_stage import Stage
from meshwright.plan.memory.fsdp_states import (
    at_layer,
    ends_of_top_groups,
    gathered_weights,
    gathers_ahead,
    gathers_forward,
    leftover_reduction,
    moment,
)
from meshwright.plan.memory.report import Moment


def forward_moments(stage: Stage, flight: Flight) -> Iterator[Moment]:
    """Points of the forward pass that can be the peak: none but these two need more than backward."""
    older = _before_backward(stage) if flight.later else 0.0
    if gathers_ahead(stage) and stage.first and flight.later:
        gathered = stage.formats.gathered * (stage.root + stage.own_embedding)
        message = stage.formats.reduced * leftover_reduction(stage, flight.later)
        yield moment(
            stage,
            "gathering the embedding",
            weights=gathered,
            gradients=older,
            activations=(flight.live - 1) * stage.micro_batch_bytes,
            communication=gathered + message,
            in_backward=False,
        )
    if stage.block.autocast:
        yield from (_cached_copies(stage, flight, last, older) for last in ends_of_top_groups(stage))


def _cached_copies(stage: Stage, flight: Flight, index: int, older: float) -> Moment:
    """The end of a layer's forward pass under autocast, which caches more copies than are kept."""
    block = stage.block
    first, last = stage.group_of(index)
    message = stage.formats.gathered * (last - first + 1) * stage.weights.layer
    return moment(
        stage,
        f"forward of layer {stage.layers[index]}",
        weights=gathered_weights(stage, at_layer(stage, index, flight)) + stage.autocast_forward(index + 1),
        gradients=older,
        activations=(flight.live - 1) * stage.micro_batch_bytes + stage.below(index),
        communication=message if gathers_forward(stage, flight.later) else 0.0,
        temporaries=block.F + block.R + 2 * block.G,
        in_backward=False,
    )


def _before_backward(stage: Stage) -> float:
    """Gradients that earlier micro-batches have left."""
    formats, kept = stage.formats, stage.wrapped and stage.zero >= 2
    return formats.stored * stage.elements / stage.shards if kept else formats.reduced * stage.elements
