"""Weights, gradients and buffers that live at a point of backward, by ZeRO stage."""

from typing import NamedTuple

from meshwright.plan.memory.fsdp_flight import Flight
from meshwright.plan.memory.fsdp_stage import Stage
from meshwright.plan.memory.report import Category, Moment


class InBackward(NamedTuple):
    """A point of the backward pass of a micro-batch, in layers of the stage.

    Attributes:
        flight: the micro-batch.
        made: layers whose weight gradients have been made.
        done: layers of groups that are reduced.
        waiting: layers whose gradients wait for the rest of their group.
        reducing: layers of the group that is being reduced.
        gathered: layers whose weights are gathered where they are freed after each use.
        embedding: the backward pass of the embedding has come.
    """

    flight: Flight
    made: int
    done: int
    waiting: int = 0
    reducing: int = 0
    gathered: int = 0
    embedding: bool = False

    def in_place(self, stage: Stage) -> bool:
        """Whether new weight gradients are added to older ones as they are made."""
        return self.flight.later and (not stage.wrapped or (stage.zero <= 1 and not stage.formats.casts))


def at_layer(stage: Stage, index: int, flight: Flight) -> InBackward:
    """Where the backward pass of the layer at ``index`` begins."""
    first, last = stage.group_of(index)
    count = len(stage.layers)
    return InBackward(flight, count - 1 - index, count - 1 - last, waiting=last - index, gathered=last - first + 1)


def at_reduction(stage: Stage, group: tuple[int, int], flight: Flight) -> InBackward:
    """Where the gradients of a group are reduced."""
    first, last = group
    count = len(stage.layers)
    return InBackward(flight, count - first, count - 1 - last, reducing=last - first + 1)


def ends_of_top_groups(stage: Stage) -> tuple[int, ...]:
    """Last layers of the top group and, where groups have several layers, of the next, which may be larger."""
    top = len(stage.layers) - 1
    return (top,) if stage.fused_layers == 1 else tuple({top, max(stage.group_of(top)[0] - 1, 0)})


def after_layers(stage: Stage, flight: Flight) -> InBackward:
    """After the backward pass of all layers."""
    count = len(stage.layers)
    return InBackward(flight, count, count, embedding=True)


def moment(
    stage: Stage,
    name: str,
    *,
    weights: float = 0.0,
    gradients: float = 0.0,
    activations: float = 0.0,
    logits: float = 0.0,
    communication: float = 0.0,
    temporaries: float = 0.0,
    in_backward: bool = True,
) -> Moment:
    """A moment: what always lives, what lives while a micro-batch's backward pass runs, and what is added."""
    parts: dict[Category, float] = {
        "weights": stage.stored_bytes + weights,
        "gradients": gradients,
        "optimizer": stage.optimizer_bytes,
        "activations": stage.input_bytes + activations,
        "logits": logits,
        "communication": stage.receive_bytes + in_backward * stage.received_gradient + communication,
        "temporaries": temporaries,
        "framework": stage.workspaces,
    }
    return Moment(name=name, parts=parts)


def reduces(stage: Stage) -> bool:
    """Whether the fullest backward pass reduces gradients group by group."""
    return stage.wrapped and (stage.zero >= 2 or not stage.pipelined)


def gathers_ahead(stage: Stage) -> bool:
    """Whether backward gathers weights."""
    return stage.wrapped and stage.zero == 3 and stage.shards > 1


def gathers_forward(stage: Stage, later: bool) -> bool:
    """Whether the forward pass of a micro-batch gathers weights: once a step where they stay gathered."""
    return stage.wrapped and stage.shards > 1 and (stage.zero == 3 or not later)


def gathering(stage: Stage, message: float) -> float:
    """Bytes of a gather under way: this rank's cast part, the message, and gloo's copy of it."""
    cast = message / stage.shards if stage.formats.casts else 0.0
    return message + cast + (message if stage.host else 0.0)


def gathered_weights(stage: Stage, at: InBackward) -> float:
    """Weights in the form that compute uses, beside the stored shards."""
    if not stage.wrapped:
        return 0.0
    if stage.zero == 3:
        embedding = stage.own_embedding if at.embedding else 0.0
        return stage.formats.gathered * (stage.root + embedding + at.gathered * stage.weights.layer)
    return stage.formats.gathered * (stage.elements - freed_layers(stage, at) * stage.weights.layer)


def freed_layers(stage: Stage, at: InBackward) -> int:
    """Layers whose gathered weights are free again where they stay gathered for the step: those that the last backward
    pass has reduced. With ZeRO-0 and 1 a pipeline reduces at its very end."""
    return at.done + at.reducing if at.flight.last and reduces(stage) else 0


def gradients(stage: Stage, at: InBackward) -> float:
    """Gradients that live before the layer at this point makes its own."""
    formats, layer = stage.formats, stage.weights.layer
    if at.flight.later and not stage.wrapped:
        return formats.gradient * (stage.elements + stage.tied_elements)
    if not stage.wrapped:
        return formats.gradient * (stage.head_elements + at.made * layer)
    total = _older(stage, at) if at.flight.later else _finished(stage, at)
    if at.in_place(stage):
        return total + formats.gradient * stage.tied_elements
    return total + formats.gradient * (stage.head_elements + at.waiting * layer)


def leftover_reduction(stage: Stage, later: bool) -> float:
    """Elements of the message that the micro-batch before has left behind: its last group's."""
    if not later or stage.zero < 2 or not stage.wrapped:
        return 0.0
    return stage.own_embedding or stage.root or (stage.group_of(0)[1] + 1) * stage.weights.layer


def _finished(stage: Stage, at: InBackward) -> float:
    """Gradients of finished groups in the first micro-batch."""
    elements = at.done * stage.weights.layer
    if stage.pipelined and stage.zero <= 1:
        return stage.formats.reduced * elements
    return stage.formats.stored * elements / stage.shards


def _older(stage: Stage, at: InBackward) -> float:
    """Gradients that earlier micro-batches have left, as far as the last one has not reduced them."""
    formats, layer = stage.formats, stage.weights.layer
    if stage.zero >= 2:
        return formats.stored * stage.elements / stage.shards
    if stage.pipelined:
        return formats.reduced * stage.elements
    pending = stage.elements - (at.done + at.reducing) * layer
    return formats.reduced * pending + formats.stored * at.done * layer / stage.shards
