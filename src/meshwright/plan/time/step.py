"""Time of one optimizer step: stages, schedule, data-parallel messages and optimizer put together."""

from dataclasses import dataclass

from meshwright.plan.job import Job
from meshwright.plan.time.constants import Constants
from meshwright.plan.time.data_messages import DataTime, data_time
from meshwright.plan.time.groups import group_of, message_seconds, next_stage
from meshwright.plan.time.machine import Machine, machine_of
from meshwright.plan.time.model_flops import model_flops
from meshwright.plan.time.optimizer import optimizer_seconds
from meshwright.plan.time.report import Span, Term, TimeReport
from meshwright.plan.time.schedule import Pipeline, makespan, spans
from meshwright.plan.time.shapes import Shape, shape_of
from meshwright.plan.time.stages import Stage, stages_of
from meshwright.plan.time.step_traffic import traffic_of
from meshwright.plan.time.traits import traits_of
from meshwright.spec.cluster import NumberFormat


@dataclass(frozen=True, kw_only=True)
class Step:
    """All that is known of a job's step before it is summed up.

    Attributes:
        hop: seconds of one message between neighbouring stages.
        data: data-parallel messages of each stage.
    """

    job: Job
    machine: Machine
    shape: Shape
    stages: tuple[Stage, ...]
    data: tuple[DataTime, ...]
    hop: float
    pipeline: Pipeline


def predict(job: Job, values: Constants | None = None) -> TimeReport:
    """Seconds of one optimizer step, by term.

    Args:
        values: constants in place of the stored ones, for fitting.
    """
    step = step_of(job, values)
    total = makespan(step.pipeline)
    slowest = max(range(len(step.stages)), key=lambda stage: step.pipeline.busy(stage))
    after = _after(step)
    update = max(optimizer_seconds(job, step.machine, stage) for stage in _distinct(step.stages))
    seconds = total + after + update
    # Against the rate of the format that linear layers run in, as NVIDIA's tables do for 8 bits.
    flops, peak = model_flops(job), step.machine.flops8 if step.shape.float8 else step.machine.flops
    return TimeReport(
        seconds=seconds,
        terms=_terms(step, slowest, total, after, update),
        traffic=traffic_of(step),
        tokens_per_second=job.tokens_per_step / seconds,
        model_flops=flops,
        mfu=flops / (seconds * job.layout.world_size * peak),
    )


def timeline(job: Job) -> tuple[Span, ...]:
    """Every pass of every micro-batch on every stage, from the start of the step."""
    return spans(step_of(job).pipeline)


def step_of(job: Job, values: Constants | None = None) -> Step:
    """Stages, messages and schedule of a job."""
    dtype: NumberFormat = "bfloat16" if job.precision.dtype == "auto" else job.precision.dtype
    products: NumberFormat = "float32" if job.precision.amp_level == "O0" else dtype
    machine = machine_of(job.cluster, job.engine.name, products, values, "float4" if job.float4 else "float8")
    shape = shape_of(job)
    stages = stages_of(job, machine, shape)
    unique = {stage.holding: data_time(job, machine, stage) for stage in _distinct(stages)}
    data = tuple(unique[stage.holding] for stage in stages)
    hop = _hop(job, machine, shape)
    return Step(
        job=job,
        machine=machine,
        shape=shape,
        stages=stages,
        data=data,
        hop=hop,
        pipeline=_pipeline(job, machine, stages, data, hop),
    )


def _distinct(stages: tuple[Stage, ...]) -> list[Stage]:
    return list({stage.holding: stage for stage in stages}.values())


def _hop(job: Job, machine: Machine, shape: Shape) -> float:
    if job.layout.pipeline_stage == 1:
        return 0.0
    share, whole = machine.constants.network, shape.tokens * job.network.hidden_size * 2.0
    size = shape.residual_tokens * job.network.hidden_size * 2.0
    if not traits_of(job.engine.name).scatters_boundaries or shape.sequence_parallel or shape.tensor == 1:
        return message_seconds("send", size, next_stage(job), job.cluster, share)
    gathered = message_seconds("all_gather", whole, group_of(job, ("model",)), job.cluster, share)
    return message_seconds("send", size / shape.tensor, next_stage(job), job.cluster, share) + gathered


def pass_seconds(stage: Stage, data: DataTime, constants: Constants, alone: bool, coupled: bool) -> tuple[float, float]:
    """(forward, backward) of a micro-batch: the device with its exposed messages, or the host where that is slower.

    Without pipeline neighbours to wait for, the host runs ahead from one pass into the next.

    Args:
        alone: the model is one stage.
        coupled: ranks wait for each other inside a pass.
    """
    launched = data.messages / 2 * constants.message
    device = (stage.forward.device + data.per_forward, stage.backward.device + data.per_backward)
    host = (stage.forward.launch + launched, stage.backward.launch + launched)
    jitter = constants.jitter if coupled else 0.0
    if not alone:
        return _slower(device[0], host[0], jitter), _slower(device[1], host[1], jitter)
    ratio = _slower(sum(device), sum(host), jitter) / sum(device)
    return device[0] * ratio, device[1] * ratio


def _slower(device: float, host: float, jitter: float) -> float:
    return max(device, host) + jitter * min(device, host)


def _pipeline(
    job: Job, machine: Machine, stages: tuple[Stage, ...], data: tuple[DataTime, ...], hop: float
) -> Pipeline:
    """Passes per chunk. A blocking send is time of the stage that sends, of one that does not block of the link."""
    rounds = job.virtual_stages if job.layout.pipeline_schedule == "interleaved_1f1b" else 1
    blocks = traits_of(job.engine.name).blocking_pipeline and rounds == 1
    wait = hop + machine.constants.message if blocks and len(stages) > 1 else 0.0
    forward, backward = [], []
    for index, (stage, sent) in enumerate(zip(stages, data, strict=True)):
        passes = pass_seconds(stage, sent, machine.constants, len(stages) == 1, job.layout.model_parallel > 1)
        ahead = wait if index < len(stages) - 1 else 0.0
        behind = wait if index else 0.0
        forward.append((passes[0] + ahead) / rounds)
        backward.append((passes[1] + behind) / rounds)
    return Pipeline(
        schedule=job.layout.pipeline_schedule if len(stages) > 1 else "gpipe",
        stages=len(stages),
        micro_batches=job.batch.micro_batch_num,
        forward=tuple(forward) * rounds,
        backward=tuple(backward) * rounds,
        hop=0.0 if blocks or len(stages) == 1 else hop,
    )


def _after(step: Step) -> float:
    """Exposed data-parallel seconds after the last backward pass: late stages have the early ones' cool-down to hide
    behind."""
    waited, worst = 0.0, 0.0
    for stage, data in enumerate(step.data):
        worst = max(worst, data.after - waited)
        waited += step.pipeline.backward[stage]
    return worst + _tied(step)


def _tied(step: Step) -> float:
    """The two copies of a tied embedding add their gradients up."""
    job = step.job
    if not job.network.tied or len(step.stages) == 1:
        return 0.0
    size = step.stages[0].vocabulary_weights * traits_of(job.engine.name).reduced_bytes
    return message_seconds("all_reduce", size, next_stage(job), job.cluster, step.machine.constants.network)


def _terms(step: Step, slowest: int, total: float, after: float, update: float) -> dict[Term, float]:
    """The step by term, of the stage that is busy longest; what it does not fill of the schedule is bubble."""
    stage, data, machine = step.stages[slowest], step.data[slowest], step.machine
    times = step.job.batch.micro_batch_num
    both = stage.forward.plus(stage.backward)
    per_pass = data.per_forward + data.per_backward
    passes = sum(pass_seconds(stage, data, machine.constants, len(step.stages) == 1, step.shape.tensor > 1))
    busy = step.pipeline.busy(slowest)
    return {
        "compute": times * both.compute,
        "recompute": times * both.recompute,
        "tensor": times * both.tensor,
        "context": times * both.context,
        "expert": times * both.expert,
        "pipeline": times * (busy - passes),
        "data": times * per_pass + after,
        "bubble": total - times * busy,
        "optimizer": update,
        "host": times * (passes - both.device - per_pass),
    }
