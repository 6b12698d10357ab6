"""Messages of one step by axis, of the busiest stage, for people to read."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from meshwright.plan.job import Job
from meshwright.plan.time.collectives import sent_bytes
from meshwright.plan.time.groups import Group, next_stage
from meshwright.plan.time.layer_time import Messages, layer_time
from meshwright.plan.time.report import Traffic

if TYPE_CHECKING:
    from meshwright.plan.time.step import Step

Axis = Literal["tensor", "context", "expert", "pipeline", "data"]


def traffic_of(step: "Step") -> tuple[Traffic, ...]:
    """Traffic of every axis that sends anything: bytes that one rank sends, and how long that takes."""
    rows = [*_inside_layers(step), *_between_stages(step), *_data(step)]
    return tuple(row for row in rows if row.messages)


def _inside_layers(step: "Step") -> list[Traffic]:
    job = step.job
    found: dict[Axis, list[tuple[int, Messages]]] = {"tensor": [], "context": [], "expert": []}
    busiest = max(step.stages, key=lambda stage: stage.holding.layers)
    held = busiest.holding
    for count, sparse, whole in (
        (held.dense, False, False),
        (held.sparse, True, False),
        (held.dense_again, False, True),
        (held.sparse_again, True, True),
    ):
        if not count:
            continue
        time = layer_time(job, step.machine, step.shape, sparse, whole)
        by_axis: dict[Axis, Messages | None] = {"tensor": time.tensor, "context": time.context, "expert": time.expert}
        for axis, messages in by_axis.items():
            if messages is not None:
                found[axis].append((count * job.batch.micro_batch_num, messages))
    found["tensor"] += [(job.batch.micro_batch_num, ends) for ends in _ends(found["tensor"], held.first + held.last)]
    return [_row(job, axis, parts) for axis, parts in found.items() if parts]


def _ends(layers: list[tuple[int, Messages]], ends: int) -> list[Messages]:
    """Messages of embedding and head, each like one of a layer: both ways with sequence parallelism, else once."""
    if not layers or not ends:
        return []
    one = layers[0][1]
    both = 1.0 if one.collective == "all_gather" else 0.0
    return [replace(one, forward=1.0, backward=both, exposed_forward=one.each, exposed_backward=both * one.each)] * ends


def _row(job: Job, axis: Axis, parts: list[tuple[int, Messages]]) -> Traffic:
    collective = parts[0][1].collective
    group = parts[0][1].group
    numbers = [times * (part.forward + part.backward) for times, part in parts]
    return Traffic(
        axis=axis,
        collective=_spoken(collective, axis, job),
        bytes=sum(
            n * sent_bytes(collective, part.size, group.ranks) for n, (_, part) in zip(numbers, parts, strict=True)
        ),
        messages=round(sum(numbers)),
        link=_link(job, group),
        seconds=sum(n * part.each for n, (_, part) in zip(numbers, parts, strict=True)),
        exposed=sum(times * (part.exposed_forward + part.exposed_backward) for times, part in parts),
    )


def _spoken(collective: str, axis: Axis, job: Job) -> str:
    if axis == "tensor" and job.layout.use_seq_parallel:
        return "all_gather / reduce_scatter"
    return collective


def _between_stages(step: "Step") -> list[Traffic]:
    job = step.job
    if len(step.stages) == 1:
        return []
    size = step.shape.residual_tokens * job.network.hidden_size * 2.0
    rounds = step.pipeline.rounds
    # A stage between two others sends both ways.
    ways = 2 if len(step.stages) > 2 or rounds > 1 else 1
    times = ways * job.batch.micro_batch_num * rounds
    waits = step.pipeline.hop == 0
    return [
        Traffic(
            axis="pipeline",
            collective="send",
            bytes=times * size,
            messages=times,
            link=_link(job, next_stage(job)),
            seconds=times * step.hop,
            exposed=times * step.hop if waits else 2 * (len(step.stages) * rounds - 1) * step.hop,
        )
    ]


def _data(step: "Step") -> list[Traffic]:
    busiest = max(step.data, key=lambda data: sum(item.seconds for item in data.transfers))
    return [
        Traffic(
            axis="data",
            collective=item.collective,
            bytes=item.count * sent_bytes(item.collective, item.size, item.group.ranks),
            messages=round(item.count),
            link=_link(step.job, item.group),
            seconds=item.seconds,
            exposed=min(item.seconds, item.exposed),
        )
        for item in busiest.transfers
        if item.group.ranks > 1
    ]


def _link(job: Job, group: Group) -> str:
    return (job.cluster.inter if group.nodes > 1 else job.cluster.intra).name
