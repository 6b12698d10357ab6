"""Layout: how many ways each dimension of the run is split, and where the parts lie."""

from dataclasses import dataclass
from typing import Literal

MeshDim = Literal["data", "pipeline", "context", "model"]
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]

DEFAULT_MESH_ORDER: tuple[MeshDim, ...] = ("data", "pipeline", "context", "model")


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """Position of one rank along each mesh dimension, each counted from 0."""

    data: int
    pipeline: int
    context: int
    model: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The split of a run over ranks. Field names are those of ``parallel_config``.

    Attributes:
        model_parallel: tensor-parallel degree.
        zero_stage: what the data x context ranks shard: 0 nothing, 1 optimizer states, 2 and gradients,
            3 and weights.
        zero_group_size: shard inside groups of this many ranks, replicate across them; None is all ranks.
        comm_fusion: transformer layers whose parameter and gradient messages travel as one.
        mesh_order: mesh dimensions, outermost (slowest links) first.
        stage_layers: layers of each pipeline stage by hand; None cuts evenly.
    """

    data_parallel: int = 1
    model_parallel: int = 1
    pipeline_stage: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    use_seq_parallel: bool = False
    zero_stage: int = 0
    zero_group_size: int | None = None
    pipeline_schedule: PipelineSchedule = "1f1b"
    comm_fusion: int = 1
    mesh_order: tuple[MeshDim, ...] = DEFAULT_MESH_ORDER
    stage_layers: tuple[int, ...] | None = None

    @property
    def world_size(self) -> int:
        """Ranks in all. Expert parallelism is carved out of data x context and adds none."""
        return self.data_parallel * self.model_parallel * self.pipeline_stage * self.context_parallel

    @property
    def zero_ranks(self) -> int:
        """Ranks that hold the same model part: data x context."""
        return self.data_parallel * self.context_parallel

    @property
    def zero_shards(self) -> int:
        """Ways the sharded states are cut: 1 at ZeRO-0, else ``zero_group_size`` or all of data x context."""
        if self.zero_stage == 0:
            return 1
        return self.zero_group_size or self.zero_ranks

    def size(self, dim: MeshDim) -> int:
        """Ranks along one mesh dimension."""
        return {
            "data": self.data_parallel,
            "pipeline": self.pipeline_stage,
            "context": self.context_parallel,
            "model": self.model_parallel,
        }[dim]

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of a global rank. Raises ValueError when the rank is not in the world."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside 0..{self.world_size - 1}")
        position: dict[str, int] = {}
        for dim in reversed(self.mesh_order):
            rank, position[dim] = divmod(rank, self.size(dim))
        return Coordinates(**position)

    def rank(self, at: Coordinates) -> int:
        """Global rank at some coordinates; the inverse of `coordinates`."""
        rank = 0
        for dim in self.mesh_order:
            rank = rank * self.size(dim) + getattr(at, dim)
        return rank

    def short(self) -> str:
        """``dp2 tp2 pp2 zero1``: the dimensions that are split, in the field's short names."""
        names = (("dp", "data"), ("tp", "model"), ("pp", "pipeline"), ("cp", "context"))
        parts = [f"{short}{self.size(dim)}" for short, dim in names if self.size(dim) > 1]  # type: ignore[arg-type]
        return " ".join([*(parts or ["dp1"]), f"zero{self.zero_stage}"])
