"""Configs drawn by a seed from what training supports."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import get_args

from meshwright.spec import rules
from meshwright.spec.layers import even_cut
from meshwright.spec.layout import DEFAULT_MESH_ORDER, Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.presets import preset
from meshwright.spec.support import PIPELINE_SCHEDULES, unsupported
from meshwright.spec.training import Batch, Precision, Recompute, RecomputeKind, TrainSpec

MODELS = {name: preset(name) for name in ("llama3.2-1b", "llama2-7b", "llama3-8b")}
"""Tied and untied, with and without grouped queries, vocabularies of 32 and 128 thousand."""
KINDS = get_args(RecomputeKind)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rank of a drawn run."""

    name: str
    model: ModelSpec
    layout: Layout
    train: TrainSpec
    rank: int

    @property
    def stage(self) -> int:
        """Pipeline stage of the rank."""
        return self.layout.coordinates(self.rank).pipeline

    @property
    def recompute(self) -> str:
        """What is recomputed, in words."""
        layers, select = self.train.recompute.layers, self.train.recompute.select
        if isinstance(layers, tuple):
            return f"layers {layers[0]}-{layers[-1]} by {layers[1] - layers[0]}"
        return layers if layers != "none" else "+".join(select) or "none"

    @property
    def text(self) -> str:
        """The case in one line; two different cases of one draw read differently."""
        layout, train = self.layout, self.train
        parts = [
            f"{self.name} {layout.short()}{' sp' if layout.use_seq_parallel else ''}",
            f"seq{train.seq_length} mbs{train.batch.micro_batch_size} x{train.batch.micro_batch_num}",
            f"{train.precision.amp_level} {train.precision.dtype}",
            f"recompute {self.recompute}",
            f"rank {self.rank} stage {self.stage}",
        ]
        named = {
            layout.pipeline_schedule: layout.pipeline_stage > 1,
            f"cut {layout.stage_layers}": layout.stage_layers,
            f"fuse{layout.comm_fusion}": layout.comm_fusion > 1,
            f"group{layout.zero_group_size}": layout.zero_group_size,
            f"chunk{train.loss_chunk_tokens}": train.loss_chunk_tokens,
            f"order {' '.join(layout.mesh_order)}": layout.mesh_order != DEFAULT_MESH_ORDER,
            "isolated": train.isolate_documents,
        }
        return ", ".join([*parts, *(name for name, told in named.items() if told)])


def isolated(case: Case) -> Case:
    """The case with attention inside documents."""
    return replace(case, train=replace(case.train, isolate_documents=True))


def draw(count: int, seed: int, models: Mapping[str, ModelSpec] = MODELS) -> Iterator[Case]:
    """``count`` supported cases over some models by name; the same for the same seed."""
    source = random.Random(seed)
    found = 0
    while found < count:
        case = _case(source, models)
        asked = (case.model, case.layout, case.train)
        if not rules.violations(*asked, case.layout.world_size) and not unsupported(*asked, device="cuda"):
            found += 1
            yield case


def _case(source: random.Random, models: Mapping[str, ModelSpec]) -> Case:
    name = source.choice(list(models))
    layout = _layout(source, models[name].num_layers)
    train = _train(source, layout, models[name].num_layers)
    return Case(name=name, model=models[name], layout=layout, train=train, rank=source.randrange(layout.world_size))


def _layout(source: random.Random, layers: int) -> Layout:
    data, model, stages = source.choice((1, 2, 4, 8)), source.choice((1, 1, 2, 4)), source.choice((1, 1, 2, 4))
    zero = source.choice((0, 1, 2, 3))
    return Layout(
        data_parallel=data,
        model_parallel=model,
        pipeline_stage=stages,
        use_seq_parallel=model > 1 and source.random() < 0.6,
        zero_stage=zero,
        zero_group_size=data // 2 if zero and data > 2 and source.random() < 0.25 else None,
        pipeline_schedule=source.choice(PIPELINE_SCHEDULES) if stages > 1 else "1f1b",
        comm_fusion=source.choice((1, 1, 1, 2, 3)),
        mesh_order=_mesh_order(source),
        stage_layers=_uneven_cut(layers, stages) if stages > 1 and source.random() < 0.2 else None,
    )


def _mesh_order(source: random.Random) -> tuple:
    if source.random() < 0.7:
        return DEFAULT_MESH_ORDER
    return tuple(source.sample(DEFAULT_MESH_ORDER, len(DEFAULT_MESH_ORDER)))


def _uneven_cut(layers: int, stages: int) -> tuple[int, ...]:
    """One layer less on the last stage, which has the head, and one more on the first."""
    first, *between, last = even_cut(layers, stages)
    return (first + 1, *between, last - 1)


def _train(source: random.Random, layout: Layout, layers: int) -> TrainSpec:
    stages = layout.pipeline_stage
    number = source.choice((1, 2, 4) if stages == 1 else (stages, stages + 1, 2 * stages))
    size = source.choice((1, 2))
    return TrainSpec(
        seq_length=source.choice((1024, 2048, 4096)),
        batch=Batch(
            micro_batch_size=size, micro_batch_num=number, global_batch_size=size * number * layout.data_parallel
        ),
        loss_chunk_tokens=source.choice((None, None, None, 1024)),
        precision=_precision(source),
        recompute=_recompute(source, layers),
    )


def _precision(source: random.Random) -> Precision:
    level = source.choice(("O0", "O1", "O2", "O2", "O3"))
    if level == "O0":
        return Precision(amp_level=level, dtype="float32")
    return Precision(amp_level=level, dtype=source.choice(("bfloat16", "bfloat16", "float16")))


def _recompute(source: random.Random, layers: int) -> Recompute:
    kind = source.choice(("none", "none", "all", "all", "select", "select", "select", "half"))
    if kind == "half":
        return Recompute(layers=source.choice((tuple(range(layers // 2)), tuple(range(0, layers, 2)))))
    if kind == "select":
        return Recompute(select=tuple(source.sample(KINDS, source.randint(1, 3))))
    return Recompute(layers="all" if kind == "all" else "none")
