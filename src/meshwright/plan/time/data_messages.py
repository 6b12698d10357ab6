"""Data-parallel messages of one stage: gradients reduced, weights gathered, and what of it compute does not hide."""

import math
from dataclasses import dataclass

from meshwright.plan.job import Job
from meshwright.plan.time.collectives import Collective
from meshwright.plan.time.groups import Group, message_seconds, shard_groups
from meshwright.plan.time.machine import Machine
from meshwright.plan.time.stages import Stage
from meshwright.plan.time.traits import Traits, traits_of


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Messages of one kind over one optimizer step.

    Attributes:
        size: bytes of one full message.
        count: messages per step.
        seconds / exposed: of all of them.
    """

    collective: Collective
    size: float
    group: Group
    count: float
    seconds: float
    exposed: float


@dataclass(frozen=True, kw_only=True)
class DataTime:
    """Data-parallel messages of a stage.

    Attributes:
        per_forward / per_backward: exposed seconds inside each pass of a micro-batch.
        after: exposed seconds between the last backward pass and the next step's first forward pass.
        messages: messages per micro-batch pass, which the host has to launch.
    """

    per_forward: float
    per_backward: float
    after: float
    messages: float
    transfers: tuple[Transfer, ...]


NOTHING = DataTime(per_forward=0.0, per_backward=0.0, after=0.0, messages=0.0, transfers=())


def data_time(job: Job, machine: Machine, stage: Stage) -> DataTime:
    """Data-parallel messages of a stage's ranks."""
    if job.layout.zero_ranks == 1:
        return NOTHING
    if job.engine.family == "fsdp" or job.layout.zero_stage == 3:
        return _by_module(job, machine, stage)
    return _whole_stage(job, machine, stage)


def expert_share(job: Job) -> float:
    """Ranks of a data x context group to each that holds the same experts: the expert degree, less what tensor ranks
    that do not split experts take of it."""
    layout = job.layout
    split = job.expert_tensor_parallel or layout.model_parallel
    return max(1.0, layout.expert_parallel * split / layout.model_parallel)


def _trainable(job: Job, stage: Stage) -> tuple[float, float]:
    """(dense, expert) parameters with gradients: with adapters, their own alone."""
    if job.adapter is None:
        return stage.dense_weights, stage.expert_weights
    per_layer = 2.0 * job.adapter.rank * job.network.hidden_size * (7 if job.adapter.targets == "all" else 4)
    return per_layer * stage.holding.layers, 0.0


def _wire_bytes(job: Job, traits: Traits) -> float:
    if job.precision.amp_level in ("O0", "O3"):
        return 4.0 if job.precision.amp_level == "O0" else 2.0
    return traits.reduced_bytes_fp16 if job.precision.dtype == "float16" else traits.reduced_bytes


def _whole_stage(job: Job, machine: Machine, stage: Stage) -> DataTime:
    """Megatron's DistributedDataParallel and distributed optimizer: once per step.

    ZeRO-0 all-reduces; ZeRO-1 and 2 reduce-scatter gradients and gather weights after the update; groups that hold
    the same shards add theirs up. ZeRO-2 of DeepSpeed reduces after every micro-batch.
    """
    traits, layout, share = traits_of(job.engine.name), job.layout, machine.constants.network
    shards, copies = shard_groups(job)
    dense, expert = _trainable(job, stage)
    groups = [(dense, shards)]
    if expert:
        ranks = max(1, int(shards.ranks / expert_share(job)))
        groups.append((expert, Group(ranks, min(ranks, shards.nodes))))
    wire = _wire_bytes(job, traits)
    reduce: Collective = "reduce_scatter" if layout.zero_stage else "all_reduce"
    times = job.batch.micro_batch_num if layout.zero_stage >= 2 or traits.reduces_every_micro_batch else 1
    reduced = [_bucketed(job, stage, reduce, weights, wire, group, share) for weights, group in groups]
    if copies.ranks > 1:
        held = (dense + expert) / shards.ranks
        reduced.append(_bucketed(job, stage, "all_reduce", held, wire, copies, share))
    gathered = []
    if layout.zero_stage:
        gathered = [_bucketed(job, stage, "all_gather", weights, 2, group, share) for weights, group in groups]
    sums = sum(item.seconds for item in reduced)
    exposed = _behind(job.overlap_gradients, sums, reduced, machine.constants.overlap * stage.backward.seconds)
    gather = sum(item.seconds for item in gathered)
    ahead = job.overlap_weights and traits.weights_ahead
    late = _behind(ahead, gather, gathered, machine.constants.overlap * stage.forward.seconds)
    transfers = (
        *(_total(item, times, exposed / sums if sums else 0.0) for item in reduced),
        *(_total(item, 1, late / gather if gather else 0.0) for item in gathered),
    )
    return DataTime(
        per_forward=0.0,
        per_backward=exposed if times > 1 else 0.0,
        after=late + (0.0 if times > 1 else exposed),
        messages=0.0,
        transfers=transfers,
    )


def _behind(overlaps: bool, seconds: float, items: list[Transfer], compute: float) -> float:
    """What remains when messages travel behind ``compute`` seconds: the last bucket at least."""
    if not overlaps or not items:
        return seconds
    return max(seconds - compute, max(item.seconds / item.count for item in items))


def _bucketed(
    job: Job, stage: Stage, collective: Collective, weights: float, wire: float, group: Group, share: float
) -> Transfer:
    """Messages of ``weights`` parameters at ``wire`` bytes each: tensor by tensor, or in the engine's buckets."""
    traits = traits_of(job.engine.name)
    if traits.tensors_per_layer:
        ends = stage.holding.first + stage.holding.last
        count = max(1.0, float(traits.tensors_per_layer * stage.holding.layers + ends))
    else:
        # Megatron's buckets grow with the group: max(40e6, 1e6 x ranks) parameters; without overlap there is one.
        bucket = max(traits.bucket_parameters, 1e6 * group.ranks) if job.overlap_gradients else weights
        count = max(1.0, weights // max(1.0, bucket))
    size = weights * wire
    seconds = count * message_seconds(collective, size / count, group, job.cluster, share)
    return Transfer(
        collective=collective, size=size / count, group=group, count=count, seconds=seconds, exposed=seconds
    )


def _total(item: Transfer, times: float, exposed: float) -> Transfer:
    return Transfer(
        collective=item.collective,
        size=item.size,
        group=item.group,
        count=item.count * times,
        seconds=item.seconds * times,
        exposed=item.seconds * times * exposed,
    )


def _by_module(job: Job, machine: Machine, stage: Stage) -> DataTime:
    """FSDP (arXiv:2304.11277): weights gathered before use and gradients reduced after, module by module.

    Messages of a module travel behind the compute of its neighbours; the first gather and the last reduction have
    nothing to hide behind.
    """
    traits, layout, share = traits_of(job.engine.name), job.layout, machine.constants.network
    shards, copies = shard_groups(job)
    zero, micro_batches = layout.zero_stage, job.batch.micro_batch_num
    modules, root = _modules(job, stage)
    gathered_bytes = 4.0 if job.precision.amp_level in ("O0", "O1") else 2.0
    frozen = stage.dense_weights + stage.expert_weights
    trainable = sum(_trainable(job, stage))
    wire = _wire_bytes(job, traits)
    gather = message_seconds("all_gather", gathered_bytes * frozen / modules, shards, job.cluster, share)
    kind: Collective = "reduce_scatter" if zero else "all_reduce"
    reduce = message_seconds(kind, wire * trainable / modules, shards, job.cluster, share)
    across = message_seconds("all_reduce", wire * trainable / shards.ranks / modules, copies, job.cluster, share)
    reduced_each = zero >= 2 or traits.reduces_every_micro_batch
    gathered_each = zero == 3 or (zero > 0 and traits.reduces_every_micro_batch)
    overlap = machine.constants.overlap if job.overlap_gradients else 0.0
    again = gather if zero == 3 else 0.0
    forward = _hidden(modules, gather if zero else 0.0, overlap * stage.forward.seconds)
    backward = _hidden(modules, again + (reduce if reduced_each else 0.0), overlap * stage.backward.seconds)
    last = _hidden(modules, again + reduce + across, overlap * stage.backward.seconds)
    gathers = (micro_batches if gathered_each else 1 if zero else 0) + (micro_batches if zero == 3 else 0)
    reduces = micro_batches if reduced_each else 1
    both = again + reduce + across
    gather_share = again / both if both else 0.0
    backwards = backward * (micro_batches - 1) + last
    transfers = [
        Transfer(
            collective=kind,
            size=wire * trainable / modules,
            group=shards,
            count=reduces * modules,
            seconds=modules * reduces * reduce,
            exposed=backwards * (1 - gather_share),
        )
    ]
    if copies.ranks > 1:
        transfers.append(
            Transfer(
                collective="all_reduce",
                size=wire * trainable / shards.ranks / modules,
                group=copies,
                count=modules,
                seconds=modules * across,
                exposed=min(modules * across, last - backward),
            )
        )
    if gathers:
        # The head is used right before backward begins: it stays gathered between.
        kept = micro_batches if zero == 3 and root else 0
        count = gathers * modules - kept
        exposed = forward * (micro_batches if gathered_each else 1) + backwards * gather_share
        transfers.append(
            Transfer(
                collective="all_gather",
                size=gathered_bytes * (gathers * frozen - kept * root) / count,
                group=shards,
                count=count,
                seconds=count * gather,
                exposed=exposed,
            )
        )
    return DataTime(
        per_forward=forward if gathered_each else 0.0,
        per_backward=backward,
        after=last - backward + (0.0 if gathered_each else forward),
        messages=modules * (gathers + reduces) / micro_batches,
        transfers=tuple(transfers),
    )


def _modules(job: Job, stage: Stage) -> tuple[float, float]:
    """(messages of one pass, weights in the last of them) of a stage: groups of layers, the embedding unless it is
    tied, and the root, which holds the head (`meshwright.parallel.zero`; torchtitan wraps alike)."""
    holding = stage.holding
    layers = math.ceil(holding.layers / max(1, job.layout.comm_fusion))
    if job.network.tied:
        return layers + 1.0 * (holding.first or holding.last), stage.vocabulary_weights
    ends = holding.first + holding.last
    return float(layers + ends), stage.vocabulary_weights / ends if holding.last else 0.0


def _hidden(modules: float, each: float, compute: float) -> float:
    """Exposed seconds of ``modules`` messages behind ``compute`` seconds of one pass: one at least."""
    return max(each, modules * each - compute)
