"""Advice in the words of practice, each line from predicted numbers of this model on these devices.

Nothing here knows an order of preference: a line says what was compared, and the figures decide.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from meshwright.plan.job import Job
from meshwright.plan.levers import Lever, host_bytes, levers, offloaded, smallest_that_fits
from meshwright.plan.memory.report import Category
from meshwright.plan.question import Question
from meshwright.plan.search import Answer, Candidate, predict
from meshwright.plan.words import TERM_WORDS, gib, recompute_word, seconds, size
from meshwright.spec.cluster import Cluster
from meshwright.spec.parameters import total

NOT_YET = " (not supported by meshwright yet)"
SEQUENCE_PARTS: tuple[Category, ...] = ("activations", "logits", "temporaries")
FEW, MANY = 0.02, 0.1
MOST_LEVERS = 4


def advise(answer: Answer) -> list[str]:
    """What the numbers of an answer say: how to make it fit, or why the best is the best."""
    if answer.best is None:
        return list(_refusal(answer))
    parts: tuple[Callable[[Answer, Candidate], Iterator[str]], ...] = (
        _uncut,
        _zero,
        _across_nodes,
        _tensor_over_nodes,
        _key_value_heads,
        _long_sequences,
        _bubble,
        _adapters,
    )
    return [line for part in parts for line in part(answer, answer.best)]


def remedies(question: Question, candidate: Candidate) -> list[str]:
    """What binds a layout that is over memory, and single changes to it, those that make it fit first."""
    return [_attribution(candidate), *(_lever(lever) for lever in levers(question, candidate)[:MOST_LEVERS])]


def _refusal(answer: Answer) -> Iterator[str]:
    question = answer.question
    if not answer.over:
        return
    closest = answer.over[0]
    yield from remedies(question, closest)
    larger = smallest_that_fits(question)
    if larger and larger.best:
        yield (
            f"{larger.question.cluster.num_devices} devices: {described(larger.best)} fits,"
            f" {gib(larger.best.needed)} per device, {seconds(larger.best.seconds)}/step"
        )
    if question.adapter is None and (lighter := offloaded(question)):
        host, have = host_bytes(question), question.cluster.host_memory_bytes * question.cluster.num_nodes
        mark = NOT_YET if question.engine.name == "meshwright" else ""
        yield (
            f"optimizer states offloaded to the host: {described(lighter)} fits, {gib(lighter.needed)} per device and"
            f" {host / 1e9:.0f} GB of host memory{'' if host <= have else f', more than the {have / 1e9:.0f} GB there'}"
            f"{mark}"
        )


def _lever(lever: Lever) -> str:
    verdict = {"fits": "fits", "tight": "just fits", "over": "still over"}[lever.candidate.fit]
    return (
        f"{lever.change}: {verdict}, {gib(lever.candidate.needed)} per device ({gib(lever.saves)} less),"
        f" {seconds(abs(lever.costs))}/step {'more' if lever.costs >= 0 else 'less'}"
        f"{'' if lever.supported else NOT_YET}"
    )


def _attribution(candidate: Candidate) -> str:
    """Which part of the memory a shorter sequence or fewer parameters would shrink."""
    parts = candidate.memory.worst.peak.parts
    with_sequence = sum(parts.get(part, 0.0) for part in SEQUENCE_PARTS)
    states = sum(parts.get(part, 0.0) for part in ("weights", "gradients", "optimizer"))
    if with_sequence > states:
        return (
            f"{candidate.name}: {gib(with_sequence)} grow with the sequence of {candidate.job.seq_length} tokens"
            f" (activations, logits, temporaries), {gib(states)} are model states: shard or recompute activations"
        )
    return (
        f"{candidate.name}: {gib(states)} are model states, {gib(with_sequence)} grow with the sequence:"
        " shard the states over more devices, or move them to the host"
    )


def _uncut(answer: Answer, best: Candidate) -> Iterator[str]:
    """Data parallel alone against cutting the model."""
    ranked = [*answer.fitting, *answer.tight]
    whole = next((candidate for candidate in ranked if _is_uncut(candidate)), None)
    cut = next((candidate for candidate in ranked if not _is_uncut(candidate)), None)
    if answer.question.cluster.num_devices == 1 or (whole is None and cut is None):
        return
    if whole is None:
        nearest = next((candidate for candidate in answer.over if _is_uncut(candidate)), None)
        if nearest is not None:
            yield (
                f"data parallel alone does not fit ({nearest.name} needs {gib(nearest.needed)} at"
                f" {nearest.memory.worst.peak.name}): the model must be cut"
            )
    elif best is whole and cut is not None:
        yield (
            f"data parallel alone fits ({whole.name}): cutting the model as well would take {_slower(whole, cut)}"
            f" ({cut.name}: {_difference(whole, cut)})"
        )
    elif best is cut:
        yield f"data parallel alone fits ({whole.name}) but takes {_slower(best, whole)}: {_difference(best, whole)}"


def _zero(answer: Answer, best: Candidate) -> Iterator[str]:
    """The ZeRO stage of the best against its neighbours."""
    stages = answer.question.engine.zero_stages
    layout = best.job.layout
    if layout.zero_ranks == 1 or "zero" in answer.question.fixed:
        return
    below = [stage for stage in stages if stage < layout.zero_stage]
    if below:
        other = predict(answer.question, replace(best.job, layout=replace(layout, zero_stage=below[-1])))
        yield (
            f"zero_stage {layout.zero_stage} saves {gib(other.needed - best.needed)} per device against"
            f" {below[-1]} for {_signed(best.seconds - other.seconds)}/step"
        )


def _across_nodes(answer: Answer, best: Candidate) -> Iterator[str]:
    """Which messages of the best use the slow links, and what they cost."""
    cluster = answer.question.cluster
    if cluster.num_nodes == 1 or best.time is None:
        return
    slow = [item for item in best.time.traffic if item.link == cluster.inter.name]
    axes = dict.fromkeys(item.axis for item in slow)
    told = [
        f"{axis} ({size(sum(item.bytes for item in slow if item.axis == axis))},"
        f" {seconds(sum(item.exposed for item in slow if item.axis == axis))} of it not hidden)"
        for axis in axes
    ]
    if told:
        yield f"in {best.name} between nodes, per device and step: {', '.join(told)} over {cluster.inter.name}"


def _tensor_over_nodes(answer: Answer, best: Candidate) -> Iterator[str]:
    """What the tensor messages of the fastest tensor-parallel layout would take over the network."""
    cluster = answer.question.cluster
    tensor = next((item for item in (best, *answer.fitting) if item.job.layout.model_parallel > 1), None)
    if cluster.num_nodes == 1 or tensor is None or tensor.time is None:
        return
    inside = tensor.time.terms.get("tensor", 0.0)
    apart = predict(answer.question, replace(tensor.job, cluster=_scattered(cluster)))
    if apart.time is not None and apart.time.terms.get("tensor", 0.0) > inside * (1 + MANY):
        yield (
            f"keep tensor parallel inside a node of {cluster.devices_per_node}: the messages of {tensor.name} take"
            f" {seconds(inside)}/step over {cluster.intra.name}, over {cluster.inter.name} they would take"
            f" {seconds(apart.time.terms.get('tensor', 0.0))}"
        )


def _key_value_heads(answer: Answer, best: Candidate) -> Iterator[str]:
    heads = answer.question.model.num_kv_heads
    if heads < min(answer.question.cluster.num_devices, answer.question.cluster.devices_per_node):
        yield f"tensor parallel ends at the {heads} key/value heads of this model"


def _long_sequences(answer: Answer, best: Candidate) -> Iterator[str]:
    """Where the sequence takes most of the memory: what each way to split or recompute it would do."""
    parts = best.memory.worst.peak.parts
    share = sum(parts.get(part, 0.0) for part in SEQUENCE_PARTS) / best.memory.worst.allocated
    plain = predict(answer.question, _unsaved(best.job))
    if (share < 0.5 and plain.fit != "over") or plain.needed < answer.question.limit / 2:
        return
    ways = [
        lever
        for lever in levers(answer.question, plain)
        if lever.change.startswith(("recompute", "model_parallel", "context_parallel", "loss_chunk"))
    ]
    if ways:
        told = "; ".join(
            f"{lever.change} -{gib(lever.saves)}, {_signed(lever.costs)}{'' if lever.supported else NOT_YET}"
            for lever in sorted(ways, key=lambda lever: -lever.saves)[:MOST_LEVERS]
        )
        yield f"at {best.job.seq_length} tokens the sequence is what fills {plain.name} ({gib(plain.needed)}): {told}"


def _bubble(answer: Answer, best: Candidate) -> Iterator[str]:
    if best.time is None:
        return
    idle, batch = best.time.terms.get("bubble", 0.0) / best.seconds, best.job.batch
    if idle > MANY:
        yield (
            f"{batch.micro_batch_num} micro-batches over {best.job.layout.pipeline_stage} stages leave {idle:.0%} idle;"
            f" only a larger global batch than {batch.global_batch_size} would bring more of them"
            if batch.micro_batch_size == 1
            else f"the pipeline idles {idle:.0%} of the step; micro_batch_size 1 makes"
            f" {batch.micro_batch_num * batch.micro_batch_size} micro-batches, at less efficient matrix products"
        )


def _adapters(answer: Answer, best: Candidate) -> Iterator[str]:
    """Frozen weights replicated against sharded, and what loading them takes."""
    adapter, model_bytes = answer.question.adapter, _base_bytes(answer)
    if adapter is None:
        return
    layout = best.job.layout
    parts = layout.model_parallel * layout.pipeline_stage
    sharded = model_bytes / parts / (layout.zero_shards if layout.zero_stage == 3 else 1)
    yield (
        f"frozen weights: {model_bytes / 1e9:.0f} GB at {adapter.base_bits:g} bits, {sharded / 1e9:.1f} GB per device"
        f" in {best.name}; only zero_stage 3, tensor and pipeline parallel divide them"
    )
    limit = answer.question.limit
    if model_bytes / parts > limit > sharded:
        yield (
            f"load peak: a process that holds all its weights before they are sharded needs {gib(model_bytes / parts)},"
            f" more than the {gib(limit)} of a device: load shard by shard or on the host"
        )


def _base_bytes(answer: Answer) -> float:
    bits = answer.question.adapter.base_bits if answer.question.adapter else 16
    return total(answer.question.model, padded=True) * bits / 8


def _is_uncut(candidate: Candidate) -> bool:
    layout = candidate.job.layout
    return layout.zero_ranks == layout.world_size and layout.context_parallel == 1


def _scattered(cluster: Cluster) -> Cluster:
    """The same devices, each in a node of its own."""
    return replace(cluster, devices_per_node=1)


def _unsaved(job: Job) -> Job:
    """The job with nothing recomputed."""
    return replace(job, recompute=type(job.recompute)())


def described(candidate: Candidate) -> str:
    """``dp2 zero3, micro_batch_size 1, everything recomputed``."""
    job = candidate.job
    return f"{candidate.name}, micro_batch_size {job.batch.micro_batch_size}, {recompute_word(job.recompute)}"


def _difference(better: Candidate, worse: Candidate) -> str:
    """The term of the time in which two layouts differ most."""
    if better.time is None or worse.time is None:
        return "not predicted"
    before, after = better.time.terms, worse.time.terms
    more = {term: after.get(term, 0.0) - before.get(term, 0.0) for term in TERM_WORDS}
    term = max(more, key=lambda name: more[name])
    return f"{_signed(more[term])} {TERM_WORDS[term]}"


def _slower(better: Candidate, worse: Candidate) -> str:
    ratio = worse.seconds / better.seconds - 1
    return "as long" if ratio < FEW else f"{ratio:.0%} longer"


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "-") + seconds(abs(value))
