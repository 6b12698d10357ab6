"""Configs drawn by a seed from what training supports."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.dryrun.run import stage_ranks
from meshwright.spec import rules
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.presets import preset
from meshwright.spec.support import unsupported
from meshwright.spec.training import Batch, Precision, Recompute, TrainSpec

MODELS = ("llama3.2-1b", "llama2-7b", "llama3-8b")
"""Tied and untied, with and without grouped queries, vocabularies of 32 and 128 thousand."""
RECOMPUTE = (
    Recompute(),
    Recompute(layers="all"),
    Recompute(select=("elementwise",)),
    Recompute(select=("elementwise", "attention")),
    Recompute(select=("matmul", "communication")),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rank of a drawn run."""

    name: str
    model: ModelSpec
    layout: Layout
    train: TrainSpec
    rank: int

    @property
    def text(self) -> str:
        """The case in one line."""
        layout, train = self.layout, self.train
        recompute = train.recompute.layers if train.recompute.layers != "none" else "+".join(train.recompute.select)
        parts = [
            f"{self.name} {layout.short()}{' sp' if layout.use_seq_parallel else ''}",
            f"seq{train.seq_length} mbs{train.batch.micro_batch_size} x{train.batch.micro_batch_num}",
            train.precision.amp_level,
            f"recompute {recompute or 'none'}",
            f"stage {layout.coordinates(self.rank).pipeline}",
        ]
        if layout.pipeline_stage > 1:
            parts.append(layout.pipeline_schedule)
        if layout.comm_fusion > 1:
            parts.append(f"fuse{layout.comm_fusion}")
        if layout.zero_group_size:
            parts.append(f"group{layout.zero_group_size}")
        if train.loss_chunk_tokens:
            parts.append(f"chunk{train.loss_chunk_tokens}")
        return ", ".join(parts)


def draw(count: int, seed: int) -> Iterator[Case]:
    """``count`` supported cases; the same for the same seed."""
    source = random.Random(seed)
    found = 0
    while found < count:
        case = _case(source)
        if not rules.violations(case.model, case.layout, case.train, case.layout.world_size) and not unsupported(
            case.model, case.layout, case.train, device="cuda"
        ):
            found += 1
            yield case


def _case(source: random.Random) -> Case:
    name = source.choice(MODELS)
    layout = _layout(source)
    train = _train(source, layout)
    return Case(name=name, model=preset(name), layout=layout, train=train, rank=source.choice(stage_ranks(layout)))


def _layout(source: random.Random) -> Layout:
    data, model, stages = source.choice((1, 2, 4, 8)), source.choice((1, 1, 2, 4)), source.choice((1, 1, 2, 4))
    zero = source.choice((0, 1, 2, 3))
    return Layout(
        data_parallel=data,
        model_parallel=model,
        pipeline_stage=stages,
        use_seq_parallel=model > 1 and source.random() < 0.6,
        zero_stage=zero,
        zero_group_size=data // 2 if zero and data > 2 and source.random() < 0.25 else None,
        pipeline_schedule=source.choice(("1f1b", "1f1b", "gpipe")) if stages > 1 else "1f1b",
        comm_fusion=source.choice((1, 1, 1, 2)),
    )


def _train(source: random.Random, layout: Layout) -> TrainSpec:
    number = source.choice((1, 2, 4)) if layout.pipeline_stage == 1 else layout.pipeline_stage * source.choice((1, 2))
    size = source.choice((1, 2))
    level = source.choice(("O2", "O2", "O2", "O1", "O3", "O0"))
    return TrainSpec(
        seq_length=source.choice((2048, 4096)),
        batch=Batch(
            micro_batch_size=size, micro_batch_num=number, global_batch_size=size * number * layout.data_parallel
        ),
        loss_chunk_tokens=source.choice((None, None, None, 1024)),
        precision=Precision(amp_level=level, dtype="float32" if level == "O0" else "bfloat16"),
        recompute=source.choice(RECOMPUTE),
    )
