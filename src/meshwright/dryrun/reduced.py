"""The same run with few layers, few stages and few micro-batches, as far as one rank's memory is alike.

A stage keeps the activations of ``in_flight`` micro-batches at most: all of them under gpipe; under 1f1b one for each
stage from it to the last. A shorter pipeline in which the stage has the same place (first, between, last) therefore
stands for a longer one with fewer in flight.
"""

from dataclasses import dataclass, replace

from meshwright.spec.layers import layer_map
from meshwright.spec.layout import Coordinates, Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import Recompute, TrainSpec

LEAST_LAYERS = 3
LEAST_IN_FLIGHT = 2
MANY_LAYERS = 12


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One rank of a run."""

    model: ModelSpec
    layout: Layout
    train: TrainSpec
    rank: int

    @property
    def at(self) -> Coordinates:
        """The rank's coordinates."""
        return self.layout.coordinates(self.rank)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the rank's stage."""
        return layer_map(self.model.num_layers, self.layout)[self.at.pipeline]

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.train.batch.micro_batch_num

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations the stage holds at most."""
        stages = self.layout.pipeline_stage
        if stages == 1:
            return 1
        if self.layout.pipeline_schedule == "gpipe":
            return self.micro_batches
        return min(self.micro_batches, stages - self.at.pipeline)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of a reduced run. ``in_flight`` is counted under 1f1b only."""

    layers: int
    in_flight: int
    micro_batches: int


def layers_alike(problem: Problem) -> bool:
    """Whether every layer of the stage does the same."""
    recompute, model = problem.train.recompute, problem.model
    return len({(recompute.whole(layer), model.window_of_layer(layer)) for layer in problem.layers}) == 1


def few_layers(problem: Problem) -> tuple[int, ...]:
    """Two numbers of layers whose ZeRO messages are cut as the stage's are, or the stage's own number."""
    fused, whole = problem.layout.comm_fusion, len(problem.layers)
    least = LEAST_LAYERS * fused + whole % fused
    return (least, least + fused) if whole > least + fused else (whole,)


def wide_layers(problem: Problem) -> int:
    """A number of layers from which the allocator's overhead can be told."""
    fused, whole = problem.layout.comm_fusion, len(problem.layers)
    return min(whole, max(MANY_LAYERS // fused, LEAST_LAYERS) * fused + whole % fused)


def reduce(problem: Problem, shape: Shape) -> Problem:
    """The run with another shape; `layers_alike` must hold."""
    stages, stage = _place(problem, shape)
    parts = [1] * stages
    parts[stage] = shape.layers
    layout = replace(problem.layout, pipeline_stage=stages, stage_layers=tuple(parts) if stages > 1 else None)
    batch = problem.train.batch
    batch = replace(
        batch,
        micro_batch_num=shape.micro_batches,
        global_batch_size=batch.micro_batch_size * shape.micro_batches * layout.data_parallel,
    )
    first = problem.layers[0]
    window = problem.model.window_of_layer(first)
    recompute = Recompute(
        layers="all" if problem.train.recompute.whole(first) else "none", select=problem.train.recompute.select
    )
    return Problem(
        model=replace(problem.model, num_layers=sum(parts), sliding_window=window, sliding_window_layers=None),
        layout=layout,
        train=replace(problem.train, batch=batch, recompute=recompute),
        rank=layout.rank(replace(problem.at, pipeline=stage)),
    )


def _place(problem: Problem, shape: Shape) -> tuple[int, int]:
    """Stages of the shorter pipeline, and which of them is the rank's."""
    stages, stage = problem.layout.pipeline_stage, problem.at.pipeline
    if stages == 1:
        return 1, 0
    if stage == stages - 1:
        return 2, 1
    follows_depth = problem.layout.pipeline_schedule != "gpipe"
    first = stage == 0
    if first:
        return (max(shape.in_flight, 2) if follows_depth else 2), 0
    return (shape.in_flight + 1 if follows_depth else 3), 1


def own_group(ranks: tuple[int, ...], small: Problem, problem: Problem) -> tuple[int, ...]:
    """A process group of a reduced run as the group that the rank is in in the whole run."""
    found = [small.layout.coordinates(rank) for rank in ranks]
    stages = {at.pipeline for at in found}
    if stages == {small.at.pipeline}:
        wanted = [problem.at.pipeline]
    elif len(stages) == 1:
        wanted = [problem.at.pipeline + stages.pop() - small.at.pipeline]
    elif len(ranks) == small.layout.world_size or len(stages) == small.layout.pipeline_stage > 2:
        wanted = list(range(problem.layout.pipeline_stage))
    else:
        wanted = [0, problem.layout.pipeline_stage - 1]
    places = {(at.data, at.context, at.model) for at in found}
    return tuple(
        sorted(
            problem.layout.rank(Coordinates(data=data, pipeline=stage, context=context, model=model))
            for data, context, model in places
            for stage in wanted
        )
    )
