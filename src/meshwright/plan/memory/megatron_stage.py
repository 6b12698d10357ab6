"""One pipeline stage of the Megatron family: what its rank holds and how much of it is in flight."""

from dataclasses import dataclass

from meshwright.plan.job import Job
from meshwright.plan.memory.cut import stage_layers
from meshwright.plan.memory.megatron_block import Style, layer_bytes
from meshwright.plan.memory.megatron_states import States, expert_tensor, states_of
from meshwright.plan.memory.megatron_weights import (
    Split,
    Weights,
    embedding_weights,
    head_weights,
    layer_weights,
)
from meshwright.plan.time.shapes import is_sparse, padded_vocabulary


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage, in numbers of one rank.

    Attributes:
        layer_weights: parameters of the largest layer of the stage.
        kept: bytes of activations of all micro-batches in flight.
        one_layer: bytes that one layer saves without whole-layer recomputation, of the largest layer.
        predictions: heads whose logits and losses are alive together: one, and one for each extra token.
        residual: bytes of the residual stream of one micro-batch as the rank holds it.
        whole_residual: the same over the whole sequence.
        logits: elements of one micro-batch's logits on the rank.
        layers: of the stage.
        recomputes: some layer is recomputed whole.
    """

    number: int
    first: bool
    last: bool
    layers: int
    states: States
    layer_weights: Weights
    vocabulary_weights: float
    kept: float
    one_layer: float
    predictions: int
    residual: float
    whole_residual: float
    logits: float
    recomputes: bool


def stages_of(job: Job) -> tuple[Stage, ...]:
    """All stages, first to last."""
    cut = stage_layers(job)
    starts = [sum(cut[:stage]) for stage in range(len(cut))]
    return tuple(_stage(job, stage, start, count) for stage, (start, count) in enumerate(zip(starts, cut, strict=True)))


def style_of(job: Job) -> Style:
    """What decides which tensors a job's layers save."""
    layout = job.layout
    sequence = layout.model_parallel if layout.use_seq_parallel or job.engine.name == "nanotron" else 1
    again = job.recompute_modules + (("core_attn",) if "attention" in job.recompute.select else ())
    experts = job.network.experts
    visits = experts.experts_per_token if experts else 0
    gathers = job.expert_dispatch == "allgather" and layout.expert_parallel * expert_tensor(job) > 1
    return Style(
        engine=job.engine.name,
        tensor=layout.model_parallel,
        sequence=sequence,
        routed=visits * expert_tensor(job) / layout.model_parallel,
        expert_tensor=expert_tensor(job),
        scores=job.seq_length if job.attention == "materialised" else 0,
        context=layout.context_parallel > 1,
        again=again,
        gathered=layout.expert_parallel * expert_tensor(job) / layout.model_parallel if gathers else 0.0,
        fused_permutation=job.fused_permutation,
    )


def split_of(job: Job) -> Split:
    """How the weights of a layer are cut."""
    return Split(tensor=job.layout.model_parallel, expert=job.layout.expert_parallel, expert_tensor=expert_tensor(job))


def in_flight(job: Job, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once, at the peak.

    1F1B holds as many as there are stages from this one to the last (arXiv:2006.09503). The interleaved schedule
    fills ``2 (stages - stage - 1) + (chunks - 1) x group`` chunks before its first backward (Megatron-LM
    ``pipeline_parallel/schedules.py``), a group being ``stages`` micro-batches. GPipe holds all.
    """
    stages, batches = job.layout.pipeline_stage, job.batch.micro_batch_num
    if job.layout.pipeline_schedule == "gpipe":
        return batches
    if job.virtual_stages == 1 or stages == 1:
        return min(batches, stages - stage)
    group = stages if batches % stages == 0 else min(batches, 2 * stages - 1)
    chunks = 2 * (stages - stage - 1) + (job.virtual_stages - 1) * group + 1
    return min(chunks, batches * job.virtual_stages) / job.virtual_stages


def _stage(job: Job, number: int, start: int, count: int) -> Stage:
    stages, tensor, rows = job.layout.pipeline_stage, job.layout.model_parallel, padded_vocabulary(job)
    first, last = number == 0, number == stages - 1
    network, style, split = job.network, style_of(job), split_of(job)
    extra = network.mtp_layers if last else 0
    count += extra
    sparse = _sparse_layers(job, start, count)
    whole = _whole_layers(job, start, count)
    weights = _layers_weights(job, split, count - sparse, sparse)
    vocabulary = (embedding_weights(network, rows, tensor) if first or extra else 0.0) + (
        head_weights(network, rows, tensor) if last and not (first and network.tied) else 0.0
    )
    saved = [layer_bytes(network, style, sparse=kind) for kind in (False, True)]
    residual = 2 * network.hidden_size / style.sequence
    kept = _kept(saved, residual, count - sparse, sparse, whole)
    return Stage(
        number=number,
        first=first,
        last=last,
        layers=count,
        states=states_of(job, Weights(dense=weights.dense + vocabulary, expert=weights.expert)),
        layer_weights=layer_weights(network, split, sparse=sparse > 0),
        vocabulary_weights=rows / tensor * network.hidden_size,
        kept=(kept * in_flight(job, number) + extra * saved[sparse > 0] * (1 - in_flight(job, number))) * job.tokens,
        one_layer=saved[sparse > 0] * job.tokens,
        predictions=1 + extra,
        residual=residual * job.tokens,
        whole_residual=2.0 * network.hidden_size * job.tokens,
        logits=rows / tensor * job.tokens if last else 0.0,
        recomputes=whole > 0,
    )


def _kept(saved: list[float], residual: float, dense: int, sparse: int, whole: int) -> float:
    """Bytes per token that a stage's layers keep: all they save, or their input where they are recomputed whole."""
    again_dense = min(whole, dense)
    again_sparse = whole - again_dense
    return saved[0] * (dense - again_dense) + saved[1] * (sparse - again_sparse) + residual * whole


def _layers_weights(job: Job, split: Split, dense: int, sparse: int) -> Weights:
    plain = layer_weights(job.network, split, sparse=False)
    if not sparse:
        return Weights(dense=dense * plain.dense)
    routed = layer_weights(job.network, split, sparse=True)
    return Weights(dense=dense * plain.dense + sparse * routed.dense, expert=sparse * routed.expert)


def _sparse_layers(job: Job, start: int, count: int) -> int:
    return sum(is_sparse(job.network, layer) for layer in range(start, start + count)) if job.network.experts else 0


def _whole_layers(job: Job, start: int, count: int) -> int:
    if job.recompute.layers in ("all", "none"):
        return count if job.recompute.layers == "all" else 0
    return sum(job.recompute.whole(layer) for layer in range(start, start + count))
