"""What each pipeline stage holds and what one micro-batch costs it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from meshwright.plan.engines import EngineName
from meshwright.plan.job import Job
from meshwright.plan.memory.cut import layers_of_stages
from meshwright.plan.network import Network
from meshwright.plan.time.block import embedding_cost, head_cost
from meshwright.plan.time.collectives import Collective
from meshwright.plan.time.groups import group_of, message_seconds
from meshwright.plan.time.layer_time import Work, layer_time
from meshwright.plan.time.machine import Machine
from meshwright.plan.time.shapes import (
    Shape,
    attention_products,
    feed_forward_products,
)
from meshwright.plan.time.traits import traits_of
from meshwright.spec.layers import even_cut

HEAD_KERNELS = (30.0, 20.0)
"""Launches of final norm, logits and an unfused loss, forward and backward."""
EMBEDDING_KERNELS = (6.0, 6.0)


class Holding(NamedTuple):
    """Layers of one stage by kind, and whether it has the ends of the model.

    Attributes:
        dense / sparse: layers without and with experts that are not recomputed whole.
        dense_again / sparse_again: those that are.
    """

    dense: int
    sparse: int
    dense_again: int
    sparse_again: int
    first: bool
    last: bool

    @property
    def layers(self) -> int:
        """Layers of the stage."""
        return self.dense + self.sparse + self.dense_again + self.sparse_again


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the pipeline.

    Attributes:
        forward / backward: one micro-batch through all its layers.
        dense_weights / expert_weights: parameters on one of its ranks.
        vocabulary_weights: part of the dense ones in embedding and head.
    """

    holding: Holding
    forward: Work
    backward: Work
    dense_weights: float
    expert_weights: float
    vocabulary_weights: float


def stages_of(job: Job, machine: Machine, shape: Shape) -> tuple[Stage, ...]:
    """All stages, first to last."""
    holdings = _holdings(
        job.network,
        job.layout.pipeline_stage,
        job.layout.stage_layers,
        job.virtual_stages,
        job.recompute.layers,
        job.engine.name,
    )
    kinds: dict[Holding, Stage] = {}
    for holding in holdings:
        if holding not in kinds:
            kinds[holding] = _stage(job, machine, shape, holding)
    return tuple(kinds[holding] for holding in holdings)


@lru_cache(maxsize=4096)
def _holdings(
    network: Network,
    stages: int,
    by_hand: tuple[int, ...] | None,
    rounds: int,
    again: str | tuple[int, ...],
    engine: EngineName,
) -> tuple[Holding, ...]:
    owners = _owners(network, stages, by_hand, rounds, engine)
    held = []
    for stage in range(stages):
        counts = [0, 0, 0, 0]
        for layer in range(network.num_layers):
            if owners[layer] == stage:
                whole = again == "all" or (not isinstance(again, str) and layer in again)
                counts[network.is_sparse(layer) + 2 * whole] += 1
        last = stage == stages - 1
        # Extra prediction layers are like the last one of the model (arXiv:2412.19437).
        counts[(network.experts is not None) + 2 * (again == "all")] += network.mtp_layers * last
        held.append(Holding(counts[0], counts[1], counts[2], counts[3], stage == 0, last))
    return tuple(held)


def _owners(
    network: Network, stages: int, by_hand: tuple[int, ...] | None, rounds: int, engine: EngineName
) -> list[int]:
    """Stage of each layer; with virtual stages, chunks are dealt out in turn."""
    layers, chunks = network.num_layers, stages * rounds
    if rounds == 1 or layers < chunks:
        cut = layers_of_stages(network, stages, by_hand, engine)
        return [stage for stage, count in enumerate(cut) for _ in range(count)]
    return [chunk % stages for chunk, count in enumerate(even_cut(layers, chunks)) for _ in range(count)]


def _stage(job: Job, machine: Machine, shape: Shape, holding: Holding) -> Stage:
    forward, backward = Work(), Work()
    for count, sparse, whole in (
        (holding.dense, False, False),
        (holding.sparse, True, False),
        (holding.dense_again, False, True),
        (holding.sparse_again, True, True),
    ):
        if count:
            time = layer_time(job, machine, shape, sparse, whole)
            forward, backward = forward.plus(time.forward, count), backward.plus(time.backward, count)
    vocabulary = job.padded_vocabulary
    if holding.first:
        ahead, behind = _embedding(job, machine, shape)
        forward, backward = forward.plus(ahead), backward.plus(behind)
    if holding.last:
        ahead, behind = _head(job, machine, shape, vocabulary)
        times = 1 + job.network.mtp_layers
        forward, backward = forward.plus(ahead, times), backward.plus(behind, times)
    dense, expert = layer_weights(job.network, shape.tensor, shape.expert, shape.expert_tensor)
    table = float(vocabulary // shape.tensor * job.network.hidden_size)
    ends = holding.first + holding.last - (job.network.tied and holding.first and holding.last)
    sparse_layers = holding.sparse + holding.sparse_again
    attention_only = layer_weights_without_feed_forward(job.network, shape.tensor)
    return Stage(
        holding=holding,
        forward=forward,
        backward=backward,
        dense_weights=table * ends
        + dense * (holding.layers - sparse_layers)
        + (attention_only + _shared(job.network, shape.tensor)) * sparse_layers,
        expert_weights=expert * sparse_layers,
        vocabulary_weights=table * ends,
    )


def layer_weights_without_feed_forward(network: Network, tensor: int) -> float:
    """Parameters of attention and norms of one layer on one rank; biases are left out."""
    return sum(float(inputs) * outputs for inputs, outputs in attention_products(network, tensor)) + (
        2.0 * network.hidden_size
    )


@lru_cache(maxsize=4096)
def layer_weights(network: Network, tensor: int, expert: int, expert_tensor: int) -> tuple[float, float]:
    """(parameters of a dense layer, of the routed experts of a sparse layer) on one rank."""
    feed_forward = feed_forward_products(network, network.intermediate_size, tensor)
    dense = layer_weights_without_feed_forward(network, tensor) + sum(float(i) * o for i, o in feed_forward)
    if network.experts is None:
        return dense, 0.0
    one = sum(float(i) * o for i, o in feed_forward_products(network, network.experts.intermediate_size, expert_tensor))
    return dense, one * max(1, network.experts.num_experts // expert)


def _shared(network: Network, tensor: int) -> float:
    if network.experts is None:
        return 0.0
    router = float(network.hidden_size * network.experts.num_experts)
    width = network.experts.shared_intermediate_size
    if not width:
        return router
    return router + sum(float(i) * o for i, o in feed_forward_products(network, width, tensor))


def _embedding(job: Job, machine: Machine, shape: Shape) -> tuple[Work, Work]:
    forward, backward = embedding_cost(machine, job.network, shape)
    sent = _vocabulary_message(job, machine, shape)
    launch, count = machine.constants.launch, 1.0 if sent else 0.0
    host = [kernels * launch + count * machine.constants.message for kernels in EMBEDDING_KERNELS]
    return Work(forward, tensor=sent, launch=host[0]), Work(backward, tensor=sent, launch=host[1])


def _head(job: Job, machine: Machine, shape: Shape, vocabulary: int) -> tuple[Work, Work]:
    forward, backward = head_cost(
        machine, job.network, shape, traits_of(job.engine.name, plain=shape.plain), vocabulary
    )
    sent = _vocabulary_message(job, machine, shape)
    host = [kernels * machine.constants.launch for kernels in HEAD_KERNELS]
    if sent:
        # The loss adds maximum, sum of exponents and the target's logit over the tensor group.
        host = [host[0] + 4 * machine.constants.message, host[1] + machine.constants.message]
    return Work(forward, tensor=sent, launch=host[0]), Work(backward, tensor=sent, launch=host[1])


def _vocabulary_message(job: Job, machine: Machine, shape: Shape) -> float:
    """Seconds of the message beside a vocabulary-parallel embedding or head."""
    if shape.tensor == 1:
        return 0.0
    size = shape.tokens * job.network.hidden_size * 2.0
    kind: Collective = "all_gather" if shape.sequence_parallel else "all_reduce"
    group = group_of(job, ("model",))
    return message_seconds(kind, size, group, job.cluster, machine.constants.network)
