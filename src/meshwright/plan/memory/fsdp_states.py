"""Weights, gradients and buffers that live at a point of backward, by ZeRO stage."""

from dataclasses import dataclass

from meshwright.plan.memory.fsdp_stage import Stage
from meshwright.plan.memory.report import Category, Moment

Parts = dict[Category, float]


@dataclass(frozen=True, kw_only=True)
class InBackward:
    """A point of the backward pass of a micro-batch.

    Attributes:
        index: layer of the stage whose backward runs; all above are done. -1 is after the last.
        later: an earlier micro-batch of the step has left gradients.
        group_done: first and last layer of the group that is being reduced.
    """

    index: int
    later: bool
    group_done: tuple[int, int] | None = None

    def in_place(self, stage: Stage) -> bool:
        """Whether new weight gradients are added to older ones as they are made."""
        return self.later and (not stage.wrapped or (stage.zero <= 1 and not stage.formats.casts))


def moment(name: str, start: Parts, **added: float) -> Moment:
    """A moment from what always lives and what is added to it."""
    parts = dict(start)
    for category, size in added.items():
        parts[category] = parts.get(category, 0.0) + size  # type: ignore[index, call-overload]
    return Moment(name=name, parts=parts)


def base(stage: Stage) -> Parts:
    """What lives throughout the step: stored weights, optimizer states, inputs, receive buffers.

    torch's pipeline stages own one receive buffer for each micro-batch and direction
    (torch/distributed/pipelining/stage.py, ``_prepare_forward_infra``).
    """
    own = stage.formats.stored * stage.elements / stage.shards
    job, block = stage.job, stage.block
    ids = 16.0 * block.tokens * stage.micro_batches
    tables = 8.0 * block.positions * block.head_dim if block.rope else 0.0
    directions = (not stage.first) + (not stage.last)
    return {
        "weights": own,
        "optimizer": 0.0 if job.offload_optimizer else 2 * own,
        "activations": ids + tables,
        "communication": directions * stage.micro_batches * stage.boundary,
    }


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


def autocast_copies(stage: Stage, layers: int) -> float:
    """16-bit copies of the matrices of the lowest layers, which autocast makes and autograd keeps."""
    if not stage.block.autocast:
        return 0.0
    kept = sum(not whole for whole in stage.whole[:layers])
    return 2 * kept * stage.weights.products


def gathered_weights(stage: Stage, at: InBackward) -> float:
    """Weights in the form that compute uses, beside the stored shards."""
    if not stage.wrapped:
        return 0.0
    if stage.zero <= 2:
        freed = 0.0 if stage.pipelined else _done(stage, at) * stage.weights.layer
        if at.group_done is not None and not stage.pipelined:
            freed += (at.group_done[1] - at.group_done[0] + 1) * stage.weights.layer
        return stage.formats.gathered * (stage.elements - freed)
    if at.group_done is not None:
        return stage.formats.gathered * stage.root
    if at.index < 0:
        return stage.formats.gathered * (stage.root + stage.own_embedding)
    first, last = stage.group_of(at.index)
    return stage.formats.gathered * (stage.root + (last - first + 1) * stage.weights.layer)


def gradients(stage: Stage, at: InBackward) -> float:
    """Gradients that live before the layer at this point makes its own."""
    formats, layer = stage.formats, stage.weights.layer
    made_above = len(stage.layers) - 1 - at.index
    if not stage.wrapped:
        if at.later:
            return formats.gradient * stage.elements
        return formats.gradient * (_head(stage) + made_above * layer)
    done = _done(stage, at)
    total = _older(stage, at, done) if at.later else _finished(stage, done)
    if at.in_place(stage):
        return total
    in_group = made_above - done
    if at.group_done is not None:
        in_group -= at.group_done[1] - at.group_done[0] + 1
    return total + formats.gradient * (_head(stage) + in_group * layer)


def leftover_reduction(stage: Stage, later: bool) -> float:
    """Elements of the message that the micro-batch before has left behind: its last group's."""
    if not later or stage.zero < 2 or not stage.wrapped:
        return 0.0
    return stage.own_embedding or stage.root or (stage.group_of(0)[1] + 1) * stage.weights.layer


def _head(stage: Stage) -> float:
    """Elements whose gradients the head makes."""
    if not stage.last:
        return 0.0
    return stage.weights.norm + (stage.weights.head or stage.weights.embedding)


def _done(stage: Stage, at: InBackward) -> int:
    """Layers in groups that are done."""
    if at.group_done is not None:
        return len(stage.layers) - 1 - at.group_done[1]
    if at.index < 0:
        return len(stage.layers)
    return len(stage.layers) - 1 - stage.group_of(at.index)[1]


def _finished(stage: Stage, done: int) -> float:
    """Gradients of finished groups in the first micro-batch."""
    elements = done * stage.weights.layer
    if stage.pipelined and stage.zero <= 1:
        return stage.formats.reduced * elements
    return stage.formats.stored * elements / stage.shards


def _older(stage: Stage, at: InBackward, done: int) -> float:
    """Gradients that earlier micro-batches have left, as far as the last one has not reduced them."""
    formats = stage.formats
    if stage.zero >= 2:
        return formats.stored * stage.elements / stage.shards
    if stage.pipelined:
        return formats.reduced * stage.elements
    finished = done * stage.weights.layer
    if at.group_done is not None:
        pending = stage.elements - finished - (at.group_done[1] - at.group_done[0] + 1) * stage.weights.layer
    else:
        pending = stage.elements - finished
    return formats.reduced * pending + formats.stored * finished / stage.shards
