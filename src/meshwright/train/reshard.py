"""Which block of which tensor every rank of a layout holds, without ranks: to cut a checkpoint offline."""

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from torch.distributed.tensor import Shard

from meshwright.checkpoint.rewrite import Part, Sizes, rewrite
from meshwright.checkpoint.store import read_state
from meshwright.config.run import Run
from meshwright.parallel.tensor import placement_of
from meshwright.spec.layers import layer_map
from meshwright.spec.layout import Coordinates, Layout
from meshwright.spec.parameters import parameter_shapes
from meshwright.spec.rules import violations
from meshwright.spec.training import Batch
from meshwright.train.checkpointing import MODEL, OPTIMIZER
from meshwright.train.inference import run_of

_SHORT = {
    "dp": "data_parallel",
    "tp": "model_parallel",
    "pp": "pipeline_stage",
    "cp": "context_parallel",
    "zero": "zero_stage",
}
_LAYOUT = re.compile(r"(?:(?:dp|tp|pp|cp|zero)\d+[\s,_]*)+")
_PREFIXES = (MODEL, f"{OPTIMIZER}exp_avg.", f"{OPTIMIZER}exp_avg_sq.")


class LayoutError(ValueError):
    """A layout that does not parse, or that the model cannot have."""


def parse_layout(text: str) -> Layout:
    """``dp2 tp2 zero1`` or ``dp2tp2_zero1``; what is not named is 1, ZeRO stage 0. Raises LayoutError."""
    if not _LAYOUT.fullmatch(text.strip()):
        raise LayoutError(f"--layout {text!r}: expected such as tp4, dp2tp2 or 'dp2 tp2 pp2 zero1'")
    found = re.findall(r"([a-z]+)(\d+)", text)
    if len({name for name, _ in found}) < len(found):
        raise LayoutError(f"--layout {text!r}: a dimension is named twice")
    values = {_SHORT[name]: int(number) for name, number in found}
    if any(value < 1 for name, value in values.items() if name != "zero_stage") or values.get("zero_stage", 0) > 3:
        raise LayoutError(f"--layout {text!r}: every dimension is 1 or more, zero is 0 to 3")
    return Layout(**values)  # type: ignore[arg-type]


def reshard(source: Path, root: Path, layout: Layout) -> Path:
    """Write a checkpoint under ``root`` as ranks of ``layout`` would have saved it; returns the new folder.

    Raises:
        LayoutError: the model cannot have this layout.
        CheckpointError: as `checkpoint.rewrite.rewrite`.
    """
    run = run_of(read_state(source)["config"])
    _require_legal(run, layout)
    # No rank's random numbers come along: a run that goes on from here starts those of dropout anew, and says so.
    changes = {"layout": layout.short(), "ranks": None, "resharded_for": asdict(layout)}
    return rewrite(source, root, LayoutCut(run, layout), ranks=layout.world_size, changes=changes)


def _require_legal(run: Run, layout: Layout) -> None:
    ways, stages = layout.zero_ranks, layout.pipeline_stage
    batch = Batch(micro_batch_size=1, micro_batch_num=stages, global_batch_size=ways * stages)
    wrong = violations(run.model, layout, replace(run.train, batch=batch), layout.world_size)
    if wrong:
        raise LayoutError("\n".join(map(str, wrong)))


class LayoutCut:
    """A `Cut` into what the ranks of a layout hold; of those that hold the same, the one with least so far writes."""

    def __init__(self, run: Run, layout: Layout) -> None:
        self._layout = layout
        self._stages = layer_map(run.model.num_layers, layout)
        self._names = parameter_shapes(run.model)
        self._bytes = [0] * layout.world_size

    def __call__(self, name: str, shape: Sizes, value_bytes: int) -> Iterable[Part]:
        parameter = next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), None)
        if parameter is None or parameter not in self._names:
            everybody = list(range(self._layout.world_size))
            return [self._part(everybody, (0,) * len(shape), shape, value_bytes)]
        return self._parameter(parameter, shape, value_bytes)

    def _parameter(self, name: str, shape: Sizes, value_bytes: int) -> Iterable[Part]:
        layout, placement, stage = self._layout, placement_of(name), self._stage(name)
        ways = range(layout.model_parallel)
        if layout.model_parallel == 1 or not isinstance(placement, Shard):
            tensor_parts = [((0,) * len(shape), shape, list(ways))]
        else:
            tensor_parts = [(*_block(shape, placement.dim, layout.model_parallel, way), [way]) for way in ways]
        for offsets, sizes, holders in tensor_parts:
            for shard in range(layout.zero_shards):
                inner, inner_sizes = _block(sizes, 0, layout.zero_shards, shard)
                if 0 in inner_sizes:
                    continue
                at = (offsets[0] + inner[0], *offsets[1:])
                yield self._part(self._holders(stage, shard, holders), at, inner_sizes, value_bytes)

    def _holders(self, stage: int, shard: int, model_ranks: list[int]) -> list[int]:
        layout = self._layout
        copies = range(shard, layout.zero_ranks, layout.zero_shards)
        places = [(divmod(zero, layout.context_parallel), model) for zero in copies for model in model_ranks]
        return [
            layout.rank(Coordinates(data=data, context=context, pipeline=stage, model=model))
            for (data, context), model in places
        ]

    def _part(self, holders: list[int], offsets: Sizes, sizes: Sizes, value_bytes: int) -> Part:
        rank = min(holders, key=lambda holder: (self._bytes[holder], holder))
        for size in sizes:
            value_bytes *= size
        self._bytes[rank] += value_bytes
        return Part(rank, offsets, sizes)

    def _stage(self, name: str) -> int:
        if name.startswith("layers."):
            layer = int(name.split(".")[1])
            return next(stage for stage, layers in enumerate(self._stages) if layer in layers)
        return 0 if name.startswith("embedding.") else len(self._stages) - 1


def _block(shape: Sizes, dim: int, ways: int, index: int) -> tuple[Sizes, Sizes]:
    """Offsets and sizes of one of ``ways`` chunks along a dimension, as torch.chunk cuts it; late ones may be empty."""
    each = -(-shape[dim] // ways)
    start = min(index * each, shape[dim])
    size = min(each, shape[dim] - start)
    offsets = tuple(start if d == dim else 0 for d in range(len(shape)))
    return offsets, tuple(size if d == dim else length for d, length in enumerate(shape))
