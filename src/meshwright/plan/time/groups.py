"""Which links the groups of a layout cross, and seconds of their messages at the bandwidth reached in training."""

from dataclasses import dataclass
from functools import lru_cache

from meshwright.plan.job import Job
from meshwright.plan.time.collectives import Collective, links, seconds
from meshwright.spec.cluster import Cluster, group_on_nodes
from meshwright.spec.layout import Layout, MeshDim

STEPPED: tuple[Collective, ...] = ("all_gather", "reduce_scatter")
UNUSUAL = 3.0
"""Times a link's latency beyond which a measured step is called slow."""


@dataclass(frozen=True)
class Group:
    """Ranks that exchange messages, and the nodes that they lie on."""

    ranks: int
    nodes: int


def group_of(job: Job, dims: tuple[MeshDim, ...]) -> Group:
    """The group along some mesh dimensions that holds rank 0."""
    layout = job.layout
    sizes = (layout.data_parallel, layout.pipeline_stage, layout.context_parallel, layout.model_parallel)
    return _group(sizes, layout.mesh_order, dims, job.cluster.devices_per_node)


def expert_group(job: Job) -> Group:
    """The ranks that share the experts: neighbours inside data x context (Megatron's expert groups)."""
    layout = job.layout
    ranks = min(layout.expert_parallel, layout.zero_ranks)
    stride = layout.model_parallel if layout.mesh_order[-1] == "model" else 1
    return Group(ranks, min(ranks, max(1, -(-ranks * stride // job.cluster.devices_per_node))))


def shard_groups(job: Job) -> tuple[Group, Group]:
    """Ranks that shard states among them, and ranks that hold the same shard (hybrid sharding)."""
    layout, whole = job.layout, group_of(job, ("data", "context"))
    shards = layout.zero_shards if layout.zero_stage else whole.ranks
    if shards >= whole.ranks:
        return whole, Group(1, 1)
    per_node = max(1, whole.ranks // whole.nodes)
    return Group(shards, max(1, -(-shards // per_node))), Group(
        whole.ranks // shards, min(whole.nodes, whole.ranks // shards)
    )


def next_stage(job: Job) -> Group:
    """The two ranks at a stage boundary; the slowest boundary of the pipeline counts."""
    whole = group_of(job, ("pipeline",))
    return Group(2, min(2, whole.nodes))


def message_seconds(collective: Collective, size: float, group: Group, cluster: Cluster, share: float) -> float:
    """Seconds of one message at ``share`` of the link model's bandwidth."""
    if group.ranks < 2 or size <= 0:
        return 0.0
    return seconds(collective, size / share, group.ranks, group.nodes, cluster)


def slow_answer(cluster: Cluster) -> float:
    """Seconds by which one step of a ring across nodes was measured to be slower than the links' latency; 0 where
    nothing was measured, or nothing unusual.

    Only steps towards ranks of other nodes are slow, so that the latency fitted over all steps is scaled up.
    """
    points = [point for point in cluster.calibration.collectives if point.nodes > 1]
    if not points:
        return 0.0
    fitted = min(links(cluster, kind)[1].latency for kind in STEPPED)
    ranks = max(point.ranks for point in points)
    step = fitted * (ranks - 1) / max(1, ranks - cluster.devices_per_node)
    return step - cluster.inter.latency if step > UNUSUAL * cluster.inter.latency else 0.0


@lru_cache(maxsize=16384)
def _group(sizes: tuple[int, ...], order: tuple[MeshDim, ...], dims: tuple[MeshDim, ...], per_node: int) -> Group:
    data, pipeline, context, model = sizes
    layout = Layout(
        data_parallel=data,
        pipeline_stage=pipeline,
        context_parallel=context,
        model_parallel=model,
        mesh_order=order,
    )
    return Group(*group_on_nodes(layout, dims, per_node))
