"""From the values of a run to the job that the planner predicts."""

from dataclasses import replace
from typing import Literal

from meshwright.config.run import Asked, Run
from meshwright.config.schema import PetConfig
from meshwright.plan.engines import Engine, engine
from meshwright.plan.job import Adapter, Job
from meshwright.plan.network import Network
from meshwright.plan.question import Fixed, Objective, Question
from meshwright.spec.cluster import Cluster, Device
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import Precision, TrainSpec

QUERY_VALUE = {"q_proj", "v_proj"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


def job_of(
    model: ModelSpec,
    layout: Layout,
    train: TrainSpec,
    *,
    cluster: Cluster,
    profile: Engine,
    adapter: Adapter | None = None,
) -> Job:
    """The optimizer step that a model, a layout and a training step make on a cluster."""
    return Job(
        network=Network.from_spec(model),
        layout=layout,
        engine=profile,
        cluster=cluster,
        seq_length=train.seq_length,
        batch=train.batch,
        recompute=train.recompute,
        precision=precision_on(cluster.device, train.precision),
        loss_chunk_tokens=train.loss_chunk_tokens,
        grad_clip=train.grad_clip is not None,
        compile=train.compile,
        isolate_documents=train.isolate_documents,
        adapter=adapter,
    )


def job_of_run(run: Run, cluster: Cluster, profile: Engine | None = None) -> Job:
    """The optimizer step of a resolved run, as Meshwright's engine makes it unless another is given."""
    return job_of(run.model, run.layout, run.train, cluster=cluster, profile=profile or engine("meshwright"))


def precision_on(device: Device, precision: Precision) -> Precision:
    """The precision with ``auto`` decided: bfloat16 where the device has it, else float16; O0 is float32."""
    if precision.amp_level == "O0":
        return replace(precision, dtype="float32")
    if precision.dtype != "auto":
        return precision
    has_bfloat16 = "bfloat16" in device.flops or "float16" not in device.flops
    return replace(precision, dtype="bfloat16" if has_bfloat16 else "float16")


def adapter_of(pet: PetConfig | None, base_bits: float = 16) -> Adapter | None:
    """The adapters that ``pet_config`` asks for, on frozen weights of ``base_bits`` bits."""
    if pet is None:
        return None
    return Adapter(rank=pet.rank, targets=_targets(set(pet.target_modules)), base_bits=base_bits)


def _targets(modules: set[str]) -> Literal["all", "attention", "qv"]:
    if modules <= QUERY_VALUE:
        return "qv"
    return "attention" if modules <= ATTENTION else "all"


def question_of(
    asked: Asked,
    cluster: Cluster,
    profile: Engine,
    *,
    base_bits: float = 16,
    pet: PetConfig | None = None,
    fixed: Fixed | None = None,
    max_memory: float | None = None,
    objective: Objective = "time",
    hypothetical: bool = False,
) -> Question:
    """The question that a config asks about a cluster. Engines other than Meshwright place ranks their own way."""
    own = profile.name == "meshwright"
    layout = asked.layout if own else replace(asked.layout, mesh_order=profile.mesh_order)
    return Question(
        model=asked.model,
        layout=layout,
        train=asked.train,
        cluster=cluster,
        engine=profile,
        adapter=adapter_of(pet, base_bits),
        fixed=dict(fixed or {}),
        max_memory=max_memory,
        objective=objective,
        hypothetical=hypothetical,
    )
