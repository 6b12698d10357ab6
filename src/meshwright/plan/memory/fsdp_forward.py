"""Moments of the forward pass before the loss."""

from collections.abc import Iterator

from meshwright.plan.memory.fsdp_flight import Flight
from meshwright.plan.memory.fsdp_stage import Stage
from meshwright.plan.memory.fsdp_states import at_layer, gathered_weights, gathers_ahead, leftover_reduction, moment
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
    if stage.block.autocast and not stage.last:
        top, block = len(stage.layers) - 1, stage.block
        yield moment(
            stage,
            f"forward of layer {stage.layers[top]}",
            weights=gathered_weights(stage, at_layer(stage, top, flight)) + stage.autocast_forward,
            gradients=older,
            activations=(flight.live - 1) * stage.micro_batch_bytes + stage.below(top),
            temporaries=block.F + block.R + 2 * block.G,
            in_backward=False,
        )


def _before_backward(stage: Stage) -> float:
    """Gradients that earlier micro-batches have left."""
    formats, kept = stage.formats, stage.wrapped and stage.zero >= 2
    return formats.stored * stage.elements / stage.shards if kept else formats.reduced * stage.elements
