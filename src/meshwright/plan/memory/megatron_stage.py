"""Pipeline stages of the Megatron family: what their ranks hold and how much of it is in flight."""

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.plan.interleave import group_size
from meshwright.plan.job import Job
from meshwright.plan.memory.cut import stage_layers
from meshwright.plan.memory.megatron_block import Style, layer_bytes
from meshwright.plan.memory.megatron_states import States, expert_tensor, states_of
from meshwright.plan.memory.megatron_weights import (
    Split,
    Weights,
    adapter_weights,
    embedding_weights,
    head_weights,
    layer_weights,
)


@dataclass(frozen=True, kw_only=True)
class Micro:
    """One micro-batch on one rank, alike on all stages. Bytes, unless said otherwise.

    Attributes:
        saved: what a layer without experts saves, and one with.
        weights: parameters of a layer without experts, and of one with.
        residual: the residual stream as the rank holds it.
        whole_residual: the same over the whole sequence.
        rows: of the embedding on the rank.
        logits: elements of the logits on the rank.
    """

    saved: tuple[float, float]
    weights: tuple[Weights, Weights]
    adapter: float
    residual: float
    whole_residual: float
    rows: float
    logits: float


class Holding(NamedTuple):
    """Layers of a stage by kind: without and with experts, those that are recomputed whole, and extra ones for
    multi-token prediction."""

    dense: int
    sparse: int
    whole: int
    extra: int
    first: bool
    last: bool


class Stage(NamedTuple):
    """A stage, in numbers of one rank.

    Attributes:
        states: weights, gradients and optimizer states.
        flying: micro-batches in flight.
        kept: bytes of activations of all micro-batches in flight.
    """

    number: int
    holding: Holding
    states: States
    flying: float
    kept: float
    micro: Micro

    @property
    def layers(self) -> int:
        """Layers of the stage."""
        return self.holding.dense + self.holding.sparse

    @property
    def predictions(self) -> int:
        """Heads whose logits and losses are alive together: one, and one for each extra token."""
        return 1 + self.holding.extra

    @property
    def layer_weights(self) -> Weights:
        """Parameters of the largest layer of the stage."""
        return self.micro.weights[self.holding.sparse > 0]


def stages_of(job: Job, numbers: Container[int] | None = None) -> tuple[Stage, ...]:
    """All stages, first to last, or those in ``numbers``."""
    micro, cut = micro_of(job), stage_layers(job)
    known: dict[Holding, tuple[States, float, float]] = {}
    found, start = [], 0
    for number, count in enumerate(cut):
        first, start = start, start + count
        if numbers is not None and number not in numbers:
            continue
        holding = _holding(job, number, first, count)
        if holding not in known:
            known[holding] = (_states(job, micro, holding), *_kept(micro, holding))
        states, kept, once = known[holding]
        flying = in_flight(job, number)
        found.append(Stage(number, holding, states, flying, kept * flying + once, micro))
    return tuple(found)


def micro_of(job: Job) -> Micro:
    """What one micro-batch needs, layer by layer."""
    network, tensor, style = job.network, job.layout.model_parallel, style_of(job)
    split = Split(tensor=tensor, expert=job.layout.expert_parallel, expert_tensor=style.expert_tensor)
    rows, kinds = job.padded_vocabulary / tensor, (False, network.experts is not None)
    saved = [layer_bytes(network, style, sparse=kind) * job.tokens for kind in kinds]
    weights = [layer_weights(network, split, sparse=kind) for kind in kinds]
    whole = 2.0 * network.hidden_size * job.tokens
    return Micro(
        saved=(saved[0], saved[1]),
        weights=(weights[0], weights[1]),
        adapter=adapter_weights(network, job.adapter, tensor) if job.adapter else 0.0,
        residual=whole / style.sequence,
        whole_residual=whole,
        rows=rows,
        logits=rows * job.tokens,
    )


def style_of(job: Job) -> Style:
    """What decides which tensors a job's layers save."""
    layout, split = job.layout, expert_tensor(job)
    again = job.recompute_modules + (("core_attn",) if "attention" in job.recompute.select else ())
    visits = job.network.experts.experts_per_token if job.network.experts else 0
    gathers = job.expert_dispatch == "allgather" and layout.expert_parallel * split > 1
    return Style(
        engine=job.engine.name,
        tensor=layout.model_parallel,
        sequence=layout.model_parallel if shards_sequence(job) else 1,
        routed=visits * split / layout.model_parallel,
        expert_tensor=split,
        scores=job.seq_length if job.attention == "materialised" else 0,
        context=layout.context_parallel > 1,
        again=again,
        gathered=layout.expert_parallel * split / layout.model_parallel if gathers else 0.0,
        fused_permutation=job.fused_permutation,
    )


def shards_sequence(job: Job) -> bool:
    """Whether tensor ranks share out the sequence between their products, as nanotron's reduce-scatter mode does."""
    return job.layout.model_parallel > 1 and (job.layout.use_seq_parallel or job.engine.name == "nanotron")


def in_flight(job: Job, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once, at the peak.

    1F1B holds as many as there are stages from this one to the last (arXiv:2006.09503). The interleaved schedule
    fills ``2 (stages - stage - 1) + (chunks - 1) x group`` chunks before its first backward (Megatron-LM
    ``pipeline_parallel/schedules.py``). GPipe holds all.
    """
    stages, batches = job.layout.pipeline_stage, job.batch.micro_batch_num
    if job.layout.pipeline_schedule == "gpipe":
        return batches
    if job.virtual_stages == 1 or stages == 1:
        return min(batches, stages - stage)
    chunks = 2 * (stages - stage - 1) + (job.virtual_stages - 1) * group_size(stages, batches) + 1
    return min(chunks, batches * job.virtual_stages) / job.virtual_stages


def _holding(job: Job, number: int, start: int, count: int) -> Holding:
    last, recompute = number == job.layout.pipeline_stage - 1, job.recompute
    extra = job.network.mtp_layers if last else 0
    sparse = 0
    if job.network.experts:
        sparse = sum(job.network.is_sparse(layer) for layer in range(start, start + count)) + extra
    if recompute.layers in ("all", "none"):
        whole = count + extra if recompute.layers == "all" else 0
    else:
        whole = sum(recompute.whole(layer) for layer in range(start, start + count))
    return Holding(count + extra - sparse, sparse, whole, extra, number == 0, last)


def _states(job: Job, micro: Micro, holding: Holding) -> States:
    network, tensor = job.network, job.layout.model_parallel
    plain, routed = micro.weights
    rows = micro.rows * tensor
    dense = holding.dense * plain.dense + holding.sparse * routed.dense
    if holding.first or holding.extra:
        dense += embedding_weights(network, rows, tensor)
    if holding.last:
        dense += head_weights(network, 0 if holding.first and network.tied else rows, tensor)
    adapter = micro.adapter * (holding.dense + holding.sparse)
    return states_of(job, Weights(dense=dense, expert=holding.sparse * routed.expert), adapter)


def _kept(micro: Micro, holding: Holding) -> tuple[float, float]:
    """Bytes that a stage's layers keep for each micro-batch, and those that it keeps once or, below 0, not at all.

    Layers save everything, or their input where they are recomputed whole. Extra layers only ever hold one
    micro-batch: they run between the last forward and the first backward.
    """
    again = min(holding.whole, holding.dense)
    plain, routed = holding.dense - again, holding.sparse - (holding.whole - again)
    kept = micro.saved[0] * plain + micro.saved[1] * routed + micro.residual * holding.whole
    once = holding.extra * micro.saved[holding.sparse > 0]
    return kept - once, once
