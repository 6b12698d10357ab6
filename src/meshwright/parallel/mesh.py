"""The ranks of a run, arranged by dimension."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.spec.layout import Coordinates, Layout

LOGICAL_ORDER = ("pipeline", "data", "context", "model")


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The device mesh of a run as seen by this rank.

    Attributes:
        root: dimensions ``pipeline``, ``replicate``, ``shard``, ``model``. Data x context is cut into ZeRO's
            ``replicate`` (groups that hold copies) and ``shard`` (ranks inside a group); which global rank stands
            where follows ``mesh_order``.
    """

    layout: Layout
    root: DeviceMesh
    rank: int

    @cached_property
    def at(self) -> Coordinates:
        """This rank's coordinates."""
        return self.layout.coordinates(self.rank)

    @property
    def zero_rank(self) -> int:
        """Position among the ranks that hold the same part of the model and different data."""
        return self.at.data * self.layout.context_parallel + self.at.context

    @property
    def model(self) -> DeviceMesh:
        """The tensor-parallel dimension."""
        return self.root["model"]

    @property
    def zero(self) -> DeviceMesh:
        """The dimensions that FSDP or replication runs over."""
        if self.layout.zero_stage == 0:
            return self.root["replicate"]
        if self.layout.zero_shards == self.layout.zero_ranks:
            return self.root["shard"]
        return self.root["replicate", "shard"]

    @cached_property
    def zero_group(self) -> dist.ProcessGroup:
        """All ranks that hold the same part of the model: data x context."""
        return self.root["replicate", "shard"]._flatten("zero").get_group()

    @property
    def pipeline_group(self) -> dist.ProcessGroup:
        """The stages of one pipeline."""
        return self.root.get_group("pipeline")

    @property
    def model_group(self) -> dist.ProcessGroup:
        """The ranks of one tensor-parallel group."""
        return self.root.get_group("model")

    @cached_property
    def ends_group(self) -> dist.ProcessGroup | None:
        """First and last stage of this rank's pipeline; None on the stages between and without a pipeline.

        Made by all ranks together, hence asked for by all of them.
        """
        stages = self.layout.pipeline_stage
        if stages == 1:
            return None
        layout = self.layout
        starts = [at for at in map(layout.coordinates, range(layout.world_size)) if at.pipeline == 0]
        ends = [[layout.rank(at), layout.rank(replace(at, pipeline=stages - 1))] for at in starts]
        mine, _ = dist.new_subgroups_by_enumeration(ends)
        return mine


def build_mesh(layout: Layout, device_type: str) -> Mesh:
    """Arrange the ranks of the default process group.

    Raises:
        ValueError: the process group has another size than the layout needs.
    """
    world = dist.get_world_size()
    if world != layout.world_size:
        raise ValueError(f"layout {layout.short()} needs {layout.world_size} ranks, the process group has {world}")
    order = layout.mesh_order
    # Not tensors: which rank stands where is host arithmetic, also where tensors are made on a device or are fake.
    ranks = np.arange(world).reshape([layout.size(dim) for dim in order])
    ranks = ranks.transpose([order.index(dim) for dim in LOGICAL_ORDER])  # type: ignore[arg-type]
    ranks = ranks.reshape(layout.pipeline_stage, -1, layout.zero_shards, layout.model_parallel)
    ranks = np.ascontiguousarray(ranks)
    root = DeviceMesh(device_type, ranks, mesh_dim_names=("pipeline", "replicate", "shard", "model"))
    return Mesh(layout=layout, root=root, rank=dist.get_rank())
