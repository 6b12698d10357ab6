"""What the planner expects of a run on the devices that it really has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.config.run import Asked, Run
from meshwright.plan.engines import engine
from meshwright.plan.from_run import job_of, question_of
from meshwright.plan.levers import Lever, levers
from meshwright.plan.memory.report import StageMemory
from meshwright.plan.question import Question
from meshwright.plan.search import Candidate, predict
from meshwright.spec.catalogue import device_cluster, hardware_of_driver
from meshwright.spec.cluster import Cluster, DeviceFamily
from meshwright.spec.training import ComputeDtype

STAND_INS: Mapping[DeviceFamily, str] = {
    "volta": "v100-32g",
    "ampere": "a100-80g",
    "ada": "l40s",
    "hopper": "h100-80g",
    "blackwell": "b200",
    "cdna3": "mi300x",
    "cdna4": "mi355x",
    "ascend": "ascend-910b-64g",
    "cpu": "cpu",
}
"""Catalogue device whose rates stand in for one of the same generation that the catalogue does not know."""
ORDER = (
    "micro_batch_size",
    "recompute",
    "loss_chunk_tokens",
    "zero_stage",
    "use_seq_parallel",
    "model_parallel",
    "context_parallel",
    "pipeline_stage",
)
"""Changes from the one that touches least: the batch, then what is kept, then how the run is split."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Attributes:
    candidate: the whole run; what it needs is told by its worst stage.
    stage: of one rank.
    """

    question: Question
    candidate: Candidate
    stage: StageMemory


def cluster_of(
    driver_name: str, family: DeviceFamily, memory_bytes: float, num_devices: int, devices_per_node: int
) -> Cluster:
    """The devices of a run, by what their driver calls them, else by their generation.

    Args:
        memory_bytes: what one process can use of its device.
    """
    entry = hardware_of_driver(driver_name)
    cluster = device_cluster(entry.name if entry else STAND_INS[family], num_devices, devices_per_node)
    return replace(cluster, device=replace(cluster.device, memory_bytes=memory_bytes))


def expected(run: Run, cluster: Cluster, rank: int, dtype: ComputeDtype) -> Expected:
    """Memory and time of a run as planned, its numbers in ``dtype`` where they are 16-bit."""
    train = replace(run.train, precision=replace(run.train.precision, dtype=dtype))
    profile = engine("meshwright")
    question = question_of(Asked(run.model, run.layout, train), cluster, profile)
    candidate = predict(question, job_of(run.model, run.layout, train, cluster=cluster, profile=profile))
    stage = candidate.memory.stages[run.layout.coordinates(rank).pipeline]
    return Expected(question=question, candidate=candidate, stage=stage)


def within(found: Expected, memory_bytes: float) -> Expected:
    """The same, held against another amount of memory per device."""
    return replace(
        found,
        question=replace(found.question, max_memory=memory_bytes),
        candidate=replace(found.candidate, limit=memory_bytes),
    )


def single_changes(found: Expected) -> list[Lever]:
    """Changes that Meshwright can train, each by itself, in `ORDER`; of one kind those that suffice first."""
    usable = [lever for lever in levers(found.question, found.candidate) if lever.supported]
    return sorted(usable, key=_place)


def _place(lever: Lever) -> int:
    return next((place for place, key in enumerate(ORDER) if lever.change.startswith(key)), len(ORDER))
