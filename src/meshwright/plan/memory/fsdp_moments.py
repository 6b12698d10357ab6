"""Candidate moments of the memory peak of a step under FSDP: loss, backward by layer, reductions, optimizer.

Which buffers exist when follows torch 2.13, torch/distributed/fsdp/_fully_shard: the reduce-scatter input of a group
lives until the next group's post-backward; backward gathers the group below ahead; groups whose input needs no
gradient (embedding, root) are reduced at the very end; a group that is not cut (replicate, one rank) is copied, not
viewed; gradients that are not reduced yet are accumulated in the reduction dtype.
"""

from collections.abc import Iterator

from meshwright.plan.memory.fsdp_flight import Flight
from meshwright.plan.memory.fsdp_forward import forward_moments
from meshwright.plan.memory.fsdp_loss import loss_moments
from meshwright.plan.memory.fsdp_stage import Stage
from meshwright.plan.memory.fsdp_states import (
    InBackward,
    after_layers,
    at_layer,
    at_reduction,
    ends_of_top_groups,
    gathered_weights,
    gathering,
    gathers_ahead,
    gradients,
    leftover_reduction,
    moment,
    reduces,
)
from meshwright.plan.memory.report import Moment


def moments(stage: Stage) -> tuple[Moment, ...]:
    """Candidates for the peak of one stage, in the order of the step."""
    found = list(forward_moments(stage, stage.in_flight[0]))
    for flight in stage.in_flight:
        if stage.last:
            found += loss_moments(stage, flight)
        found += (_layer(stage, index, flight) for index in _turning_points(stage))
        if gathers_ahead(stage):
            found += _gathers(stage, flight)
        if reduces(stage):
            found += _group_reductions(stage, flight)
        if stage.first:
            found.append(_embedding(stage, flight))
        if stage.wrapped:
            found += _last_reduction(stage, flight)
    found.append(_optimizer(stage))
    return tuple(found)


def _turning_points(stage: Stage) -> list[int]:
    """Layers between which memory changes linearly: ends of the top, second and bottom group."""
    top = len(stage.layers) - 1
    if not stage.all_alike:
        return list(range(top, -1, -1))
    second = max(stage.group_of(top)[0] - 1, 0)
    points = {top, stage.group_of(top)[0], second, stage.group_of(second)[0], stage.group_of(0)[1], 0}
    return sorted(points, reverse=True)


def _layer(stage: Stage, index: int, flight: Flight) -> Moment:
    """The worst moment of the backward pass of one layer."""
    at = at_layer(stage, index, flight)
    worst = stage.sizes.backward_in_place if at.in_place(stage) else stage.sizes.backward
    if not stage.whole(index):
        worst = max(worst, stage.sizes.begins, key=lambda one: one.rise)
    again = stage.remade_bytes(index) - stage.layer_bytes(index)
    held = (flight.live - 1) * stage.micro_batch_bytes + stage.below(index) + again - worst.freed
    # The stage's output lives until its backward has ended.
    output = 0.0 if stage.last else stage.boundary
    first, _ = stage.group_of(index)
    return moment(
        stage,
        f"backward of layer {stage.layers[index]}",
        weights=gathered_weights(stage, at) + stage.autocast_backward(index),
        gradients=gradients(stage, at) + worst.gradients,
        activations=held + output,
        communication=_ahead(stage, first) + _message(stage, at),
        temporaries=worst.temporaries,
    )


def _message(stage: Stage, at: InBackward) -> float:
    """The message of the group above, which lives until the next one is filled."""
    if not reduces(stage):
        return 0.0
    if not at.done:
        return stage.formats.reduced * leftover_reduction(stage, at.flight.later)
    return stage.formats.reduced * min(at.done, stage.fused_layers) * stage.weights.layer


def _gathers(stage: Stage, flight: Flight) -> Iterator[Moment]:
    """Gathering the next group at the beginning of the top and of the second group's backward."""
    top = len(stage.layers) - 1
    for index in {top, max(stage.group_of(top)[0] - 1, 0)}:
        first, last = stage.group_of(index)
        at = at_layer(stage, last, flight)
        yield moment(
            stage,
            f"gathering below layer {stage.layers[first]}",
            weights=gathered_weights(stage, at),
            gradients=gradients(stage, at),
            activations=(flight.live - 1) * stage.micro_batch_bytes + stage.below(last),
            communication=gathering(stage, _ahead(stage, first)) + _message(stage, at),
            temporaries=stage.boundary,
        )
    if stage.root and flight != stage.in_flight[0]:
        # No forward pass came between: the root was freed by the backward pass before.
        first, last = stage.group_of(top)
        message = stage.formats.gathered * (stage.root + (last - first + 1) * stage.weights.layer)
        at = at_layer(stage, last, flight)
        yield moment(
            stage,
            "gathering the root again",
            weights=gathered_weights(stage, at),
            gradients=gradients(stage, at),
            activations=(flight.live - 1) * stage.micro_batch_bytes + stage.below(last),
            communication=message + _message(stage, at),
        )


def _ahead(stage: Stage, first: int) -> float:
    """Message of the group that backward gathers ahead of its use."""
    if not gathers_ahead(stage):
        return 0.0
    below = stage.own_embedding if first == 0 else stage.fused_layers * stage.weights.layer
    return stage.formats.gathered * below


def _group_reductions(stage: Stage, flight: Flight) -> Iterator[Moment]:
    """Reducing the gradients of the top groups and of the bottom group of layers."""
    groups = {stage.group_of(last) for last in (*ends_of_top_groups(stage), 0)}
    for first, last in groups:
        at = at_reduction(stage, (first, last), flight)
        elements = (last - first + 1) * stage.weights.layer
        held = (flight.live - 1) * stage.micro_batch_bytes + stage.below(first - 1)
        whole, buffers = _reduction(stage, at, elements, stage.weights.down)
        yield moment(
            stage,
            f"reduction of layer {stage.layers[first]}",
            weights=gathered_weights(stage, at),
            gradients=gradients(stage, at) + whole,
            activations=held,
            communication=buffers + _ahead(stage, first),
            temporaries=stage.boundary,
        )


def _reduction(stage: Stage, at: InBackward, elements: float, final: float) -> tuple[float, float]:
    """(unreduced gradients, buffers) at the worse of two points: the copy into the message, and the reduction.

    Without shards the message is divided into a copy first; gloo reduces in a copy of it. With shards, a loop
    variable of ``foreach_reduce`` holds the gradient of the group's final weight until the end.
    """
    reduced = stage.formats.reduced
    accumulated = at.flight.later and stage.zero <= 1
    unreduced = elements * (reduced if accumulated else stage.formats.gradient)
    copy_in = (unreduced, reduced * elements)
    copies = 3 if stage.shards == 1 else 1 + stage.host + 1 / stage.shards
    held = 0.0 if stage.shards == 1 else unreduced * final / elements
    reduce = (held, copies * reduced * elements)
    return max(copy_in, reduce, key=sum)


def _embedding(stage: Stage, flight: Flight) -> Moment:
    """The dense gradient of the embedding, after the backward of all layers."""
    at = after_layers(stage, flight)
    made = stage.formats.gradient * (stage.weights.embedding + _sum_of_tied(stage))
    _, last = stage.group_of(0)
    waiting = stage.formats.reduced * (last + 1) * stage.weights.layer if reduces(stage) else 0.0
    return moment(
        stage,
        "backward of the embedding",
        weights=gathered_weights(stage, at),
        gradients=gradients(stage, at) + made,
        activations=(flight.live - 1) * stage.micro_batch_bytes,
        communication=waiting,
        temporaries=max(2 * stage.boundary, _cast_to_accumulate(stage, flight)),
    )


def _sum_of_tied(stage: Stage) -> float:
    """Elements of the sum of a tied weight's two gradients: autograd adds a view of one or a distributed tensor to the
    other out of place (torch/csrc/autograd/input_buffer.cpp, ``accumulate``)."""
    in_place = stage.block.autocast and stage.block.tensor == 1
    return 0.0 if in_place else stage.tied_elements


def _cast_to_accumulate(stage: Stage, flight: Flight) -> float:
    """A CPU casts a 16-bit gradient in a copy before it is added to the fp32 sum."""
    casts = stage.host and flight.later and stage.zero <= 1 and stage.formats.casts
    return stage.formats.reduced * stage.weights.embedding if casts else 0.0


def _last_reduction(stage: Stage, flight: Flight) -> tuple[Moment, ...]:
    """Reductions after backward: root and embedding, and under a pipeline with ZeRO-0 or 1 all groups."""
    first, last = stage.group_of(0)
    layers = (last - first + 1) * stage.weights.layer
    deferred = stage.pipelined and stage.zero <= 1
    elements = max(stage.root, stage.own_embedding, layers if deferred else 0.0)
    if elements == 0.0:
        return ()
    at = after_layers(stage, flight)
    final = stage.weights.down if elements == layers else stage.weights.embedding
    whole, buffers = _reduction(stage, at, elements, final)
    # Root and embedding come before the layers.
    others = max(stage.root + stage.own_embedding - elements, 0.0)
    pending = stage.elements - elements if deferred else others
    gathered = stage.blocks - elements if deferred and elements == layers else pending
    if stage.zero == 2 and not flight.last:
        gathered = stage.elements
    unreduced = stage.formats.reduced if flight.later and stage.zero <= 1 else stage.formats.gradient
    finished = 0.0 if deferred else stage.formats.stored * stage.blocks / stage.shards
    if flight.later and stage.zero >= 2:
        finished = stage.formats.stored * stage.elements / stage.shards
    last_moment = moment(
        stage,
        "last reductions",
        weights=stage.formats.gathered * (gathered if stage.zero <= 2 else others),
        gradients=whole + unreduced * pending + finished,
        activations=0.0 if deferred else (flight.live - 1) * stage.micro_batch_bytes,
        communication=buffers,
        in_backward=not deferred,
    )
    return (last_moment,)


def _optimizer(stage: Stage) -> Moment:
    """The update: complete gradients, and the temporary of an optimizer that updates all weights at once."""
    each = stage.elements / stage.shards
    kept_gradients = stage.formats.stored if stage.wrapped else stage.formats.gradient
    at_once = stage.traits.foreach_optimizer and not stage.job.offload_optimizer
    temporary = stage.formats.stored * each if at_once else 0.0
    return moment(stage, "optimizer step", gradients=kept_gradients * each, temporaries=temporary, in_backward=False)
