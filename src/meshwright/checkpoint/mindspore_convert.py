"""A MindSpore checkpoint as a Hugging Face folder, from which training starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from meshwright.checkpoint.errors import CheckpointMismatch
from meshwright.checkpoint.files import to_json
from meshwright.checkpoint.huggingface import HuggingFaceWeights, names_line
from meshwright.checkpoint.huggingface_export import SHARD_SIZE, Exported, torch_dtype, write_folder
from meshwright.checkpoint.mindspore_folder import MindSporeCheckpoint
from meshwright.checkpoint.safetensors_file import Entry
from meshwright.model.families import FAMILIES
from meshwright.model.mindformers import NAMES, Found, Target, find_ours, is_state, part_of
from meshwright.spec.huggingface import family_of, to_config_json
from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import EMBEDDING, HEAD, Shape, parameter_shapes

GATE = "layers.0.mlp.gate_proj.weight"
COMPARED = (EMBEDDING, "layers.{}.attention.q_proj.weight", "layers.{}.mlp.down_proj.weight", "norm.weight", HEAD)


@dataclass(frozen=True)
class Matched:
    """What a checkpoint's names mean.

    Attributes:
        places: of our parameters.
        unmatched: names that the table does not know and that are no optimizer state.
        states: how many tensors are states of an optimizer or counters of the run.
    """

    places: Mapping[str, Found]
    unmatched: tuple[str, ...]
    states: int


@dataclass(frozen=True)
class Comparison:
    """One tensor before and after: first values and the sum in float64, and whether every bit is the same."""

    theirs: str
    after: str
    shape: Shape
    before_values: tuple[float, ...]
    after_values: tuple[float, ...]
    before_sum: float
    after_sum: float
    equal: bool


@dataclass(frozen=True)
class Converted:
    """What was written, from which names, and the tensors compared."""

    written: Exported
    matched: Matched
    compared: tuple[Comparison, ...]


def match_names(source: MindSporeCheckpoint, table: Mapping[str, Target] = NAMES) -> Matched:
    """Find every parameter. Raises CheckpointMismatch where two names of theirs mean one of ours."""
    places: dict[str, Found] = {}
    unmatched, states = [], 0
    for theirs in source.entries:
        if is_state(theirs):
            states += 1
            continue
        found = find_ours(theirs, table)
        for ours, place in found.items():
            if ours in places:
                raise CheckpointMismatch(f"{source.path}: {places[ours].theirs} and {theirs} both mean {ours}")
            places[ours] = place
        if not found:
            unmatched.append(theirs)
    return Matched(places, tuple(sorted(unmatched)), states)


def intermediate_size(source: MindSporeCheckpoint, matched: Matched) -> int:
    """Rows of the first gate projection. Raises CheckpointMismatch where there is none."""
    place = matched.places.get(GATE)
    if place is None:
        raise CheckpointMismatch(f"{source.path}: no name means {GATE}; " + _unmatched_line(matched))
    return source.entries[place.theirs].shape[0] // len(place.parts)


def convert(
    source: MindSporeCheckpoint,
    matched: Matched,
    out: Path,
    spec: ModelSpec,
    *,
    dtype: torch.dtype | None = None,
    shard_size: int = SHARD_SIZE,
    allow_unmatched: bool = False,
) -> Converted:
    """Write the weights under Hugging Face names, one tensor in memory at a time, and read some back to compare.

    Args:
        dtype: of the tensors written; None keeps each one's own.
        allow_unmatched: leave tensors out whose names are not known, instead of refusing.

    Raises:
        CheckpointMismatch: a parameter is missing, left over or of another shape; every name is listed.
        CheckpointError: ``out`` is in use. OSError: the disk.
    """
    shapes = parameter_shapes(spec)
    _require_match(source, matched, shapes, spec, allow_unmatched=allow_unmatched)
    names = FAMILIES[family_of(spec)]
    ours = {names.theirs(name): name for name in shapes}
    entries = {
        theirs: Entry(dtype or source.entries[matched.places[name].theirs].dtype, shapes[name])
        for theirs, name in ours.items()
    }

    def original(name: str) -> Tensor:
        place = matched.places[name]
        rows = [shapes[part][0] for part in place.parts]
        whole = part_of(source.read(place.theirs), place, rows, (spec.num_heads, spec.num_kv_heads))
        # Rows past the vocabulary fill up a table for tensor parallelism.
        return whole[: shapes[name][0]]

    def read(theirs: str) -> Tensor:
        return original(ours[theirs]).to(entries[theirs].dtype)

    settings = to_config_json(spec) | {"torch_dtype": torch_dtype(entries)}
    written = write_folder(out, entries, read, shard_size=shard_size, files={"config.json": to_json(settings)})
    return Converted(written, matched, _compare(HuggingFaceWeights.open(out), matched, shapes, spec, original))


def _require_match(
    source: MindSporeCheckpoint,
    matched: Matched,
    shapes: Mapping[str, Shape],
    spec: ModelSpec,
    *,
    allow_unmatched: bool,
) -> None:
    places = matched.places
    wrong = [name for name in shapes if name in places and not _fits(source, places[name], name, shapes)]
    tied_head = {HEAD} if spec.tie_word_embeddings else set()
    groups = {
        "missing from the checkpoint": [name for name in shapes if name not in places],
        "in the checkpoint but not in the model": sorted(places.keys() - shapes.keys() - tied_head),
        "of another shape": [
            f"{name} ({places[name].theirs} {list(source.entries[places[name].theirs].shape)}),"
            f" the model has {list(shapes[name])}"
            for name in wrong
        ],
    }
    lines = [names_line(title, listed) for title, listed in groups.items() if listed]
    if matched.unmatched and not (allow_unmatched and not lines):
        lines.append(_unmatched_line(matched))
    if lines:
        raise CheckpointMismatch(f"{source.path} does not fit the model:\n  " + "\n  ".join(lines))


def _fits(source: MindSporeCheckpoint, place: Found, name: str, shapes: Mapping[str, Shape]) -> bool:
    held, wanted = source.entries[place.theirs].shape, shapes[name]
    if any(part not in shapes for part in place.parts):
        return False
    rows = sum(shapes[part][0] for part in place.parts)
    padded = name in (EMBEDDING, HEAD) and len(held) == 2 and held[0] >= rows
    return held[1:] == tuple(wanted[1:]) and (held[0] == rows or padded)


def _unmatched_line(matched: Matched) -> str:
    shown = "".join(f"\n    {name}" for name in matched.unmatched)
    return f"names that no table knows ({len(matched.unmatched)}); give --map FILE, or --allow-unmatched:{shown}"


def _compare(
    weights: HuggingFaceWeights,
    matched: Matched,
    shapes: Mapping[str, Shape],
    spec: ModelSpec,
    original: Callable[[str], Tensor],
) -> tuple[Comparison, ...]:
    layers = (0, spec.num_layers - 1)
    names = [name.format(layer) for name in COMPARED for layer in (layers if "{}" in name else layers[:1])]
    found = []
    for name in dict.fromkeys(names):
        if name not in shapes:
            continue
        before, theirs = original(name), weights.names.theirs(name)
        after = weights.files[theirs].read(theirs)
        found.append(
            Comparison(
                theirs=matched.places[name].theirs,
                after=theirs,
                shape=tuple(after.shape),
                before_values=_values(before),
                after_values=_values(after),
                before_sum=before.double().sum().item(),
                after_sum=after.double().sum().item(),
                equal=torch.equal(before.to(after.dtype), after),
            )
        )
    return tuple(found)


def _values(tensor: Tensor) -> tuple[float, ...]:
    return tuple(tensor.flatten()[:3].double().tolist())
