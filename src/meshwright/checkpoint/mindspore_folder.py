"""Checkpoints of MindSpore and MindFormers as named tensors, whole ones whatever they were cut into.

What is read: one ``.ckpt`` or ``.safetensors`` file; a folder of ``rank_N`` folders (MindFormers' format 1.0);
``iteration_*`` folders (format 2.0) with their metadata.json, and the folder of these, of which the newest is taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.files import read_json
from meshwright.checkpoint.mindspore_ckpt import CkptFile
from meshwright.checkpoint.mindspore_strategy import Cut, read_strategies
from meshwright.checkpoint.safetensors_file import SafetensorsFile

LATEST = "latest_checkpointed_iteration.txt"
METADATA = "metadata.json"
STRATEGY = "strategy"
_RANK = re.compile(r"rank_(\d+)")
_STEP = re.compile(r"-(\d+)_(\d+)\.(?:ckpt|safetensors)$")


class Described(Protocol):
    """Dtype and shape of a tensor that has not been read."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        ...


class File(Protocol):
    """One file, of either format."""

    @property
    def path(self) -> Path:
        """Where it lies."""
        ...

    @property
    def entries(self) -> Mapping[str, Described]:
        """Its tensors."""
        ...

    def read(self, name: str) -> Tensor:
        """One of them."""
        ...


@dataclass(frozen=True)
class Piece:
    """A block of a tensor: where it begins, in elements of each dimension, its shape, and the file that has it."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    file: File


@dataclass(frozen=True)
class Whole:
    """A tensor put together of pieces."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class MindSporeCheckpoint:
    """Named tensors, read when they are asked for.

    Attributes:
        path: the file or folder that was read, of several the newest.
    """

    path: Path
    entries: Mapping[str, Whole]

    def read(self, name: str) -> Tensor:
        """A whole tensor."""
        entry = self.entries[name]
        first = entry.pieces[0]
        if first.shape == entry.shape:
            return first.file.read(name)
        whole = torch.empty(entry.shape, dtype=entry.dtype)
        for piece in entry.pieces:
            block = whole
            for dim, (start, length) in enumerate(zip(piece.offset, piece.shape, strict=True)):
                block = block.narrow(dim, start, length)
            block.copy_(piece.file.read(name))
        return whole


def open_mindspore(path: Path, *, strategy: Path | None = None) -> MindSporeCheckpoint:
    """Find the tensors of a file or folder.

    Args:
        strategy: folder of the strategy files of ``rank_N`` folders; None looks for ``strategy`` beside ``path``.

    Raises:
        CheckpointError: nothing here is a MindSpore checkpoint, a file is damaged, or parts do not make a whole.
    """
    if path.is_file():
        return _united(path, [_open_file(path)])
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder")
    if (path / LATEST).is_file():
        path = _latest_iteration(path)
    if (path / METADATA).is_file():
        return _by_metadata(path)
    ranks = sorted((int(m[1]), p) for p in path.iterdir() if p.is_dir() and (m := _RANK.fullmatch(p.name)))
    if ranks:
        beside = path.parent / STRATEGY
        strategy = strategy or (beside if beside.is_dir() else None)
        return _of_ranks(path, {rank: _newest(folder) for rank, folder in ranks}, strategy)
    iterations = sorted(path.glob("iteration_*"))
    if iterations:
        return open_mindspore(iterations[-1], strategy=strategy)
    paths = [p for kind in ("*.safetensors", "*.ckpt") for p in sorted(path.glob(kind))]
    if not paths:
        raise CheckpointError(f"{path}: no .ckpt or .safetensors file, no rank_N and no iteration_* folder")
    if steps := [p for p in paths if _STEP.search(p.name)]:
        return _united(path, [_open_file(max(steps, key=_step))])
    return _united(path, [_open_file(p) for p in paths])


def _open_file(path: Path) -> File:
    return CkptFile.open(path) if path.suffix == ".ckpt" else SafetensorsFile.open(path)


def _latest_iteration(folder: Path) -> Path:
    text = (folder / LATEST).read_text(encoding="utf-8").strip()
    found = folder / f"iteration_{int(text):08d}" if text.isdigit() else folder / text
    if not found.is_dir():
        raise CheckpointError(f"{folder / LATEST} names {text!r}, but {found.name} is not there")
    return found


def _newest(folder: Path) -> Path:
    """The checkpoint that meta.json names, else the one of the highest epoch and step."""
    try:
        named = folder / str(read_json(folder / "meta.json")["last_ckpt_file"])
    except (OSError, ValueError, KeyError, TypeError):
        named = None
    if named is not None and named.is_file():
        return named
    files = [path for path in folder.iterdir() if _STEP.search(path.name)]
    if not files:
        raise CheckpointError(f"{folder}: no checkpoint named PREFIX-EPOCH_STEP.ckpt or .safetensors")
    return max(files, key=_step)


def _step(path: Path) -> tuple[int, int]:
    match = _STEP.search(path.name)
    assert match is not None
    return int(match[1]), int(match[2])


def _united(path: Path, files: Iterable[File]) -> MindSporeCheckpoint:
    """Files whose tensors are whole and have different names."""
    entries: dict[str, Whole] = {}
    for file in files:
        for name, entry in file.entries.items():
            if name in entries:
                other = entries[name].pieces[0].file.path.name
                raise CheckpointError(
                    f"{path}: {name} is in {other} and {file.path.name}, and no {METADATA} joins them"
                )
            shape = tuple(entry.shape)
            entries[name] = Whole(entry.dtype, shape, (Piece((0,) * len(shape), shape, file),))
    return MindSporeCheckpoint(path, entries)


def _of_ranks(path: Path, paths: Mapping[int, Path], strategy: Path | None) -> MindSporeCheckpoint:
    """Rank folders: stages hold different names; what several ranks hold is equal, or cut as strategies say."""
    files = {rank: _open_file(one) for rank, one in paths.items()}
    strategies = read_strategies(strategy) if strategy else {}
    holders: dict[str, list[int]] = {}
    for rank, file in files.items():
        for name in file.entries:
            holders.setdefault(name, []).append(rank)
    entries = {}
    for name, ranks in holders.items():
        held = {rank: files[rank] for rank in ranks}
        cuts = {rank: strategies[rank][name] for rank in ranks if name in strategies.get(rank, {})}
        entries[name] = _cut(path, name, held, cuts) if len(cuts) == len(ranks) else _equal(path, name, held, strategy)
    return MindSporeCheckpoint(path, entries)


def _cut(path: Path, name: str, held: Mapping[int, File], cuts: Mapping[int, Cut]) -> Whole:
    """A tensor of which each rank holds the block that its strategy names; of equal blocks the first is read."""
    blocks: dict[tuple[int, ...], File] = {}
    first = next(iter(held.values())).entries[name]
    counts: tuple[int, ...] = ()
    for rank, file in held.items():
        try:
            index, counts = cuts[rank].block(rank)
        except (ValueError, IndexError, TypeError) as error:
            raise CheckpointError(f"{path}: the strategy of {name} on rank {rank} makes no sense ({error})") from error
        if len(index) != len(first.shape) or file.entries[name].shape != first.shape:
            raise CheckpointError(f"{path}: {name} on rank {rank} is not of the shape that the strategy gives it")
        blocks.setdefault(index, file)
    if len(blocks) != math.prod(counts):
        raise CheckpointError(f"{path}: {len(blocks)} of the {math.prod(counts)} blocks of {name} are here")
    local = tuple(first.shape)
    pieces = [Piece(tuple(i * n for i, n in zip(at, local, strict=True)), local, file) for at, file in blocks.items()]
    return Whole(first.dtype, tuple(n * count for n, count in zip(local, counts, strict=True)), tuple(pieces))


def _equal(path: Path, name: str, held: Mapping[int, File], strategy: Path | None) -> Whole:
    """A tensor that all ranks hold whole, which is looked at: blocks of a cut tensor may well be of one shape."""
    (first, file), *others = held.items()
    content = _bits(file.read(name)) if others else None
    for rank, other in others:
        if content is None or not torch.equal(content, _bits(other.read(name))):
            where = f"{strategy} has no layout of it" if strategy else "name the folder of strategy files (--strategy)"
            raise CheckpointError(f"{path}: {name} differs between rank {first} and rank {rank}: it was split; {where}")
    shape = tuple(file.entries[name].shape)
    return Whole(file.entries[name].dtype, shape, (Piece((0,) * len(shape), shape, file),))


def _by_metadata(folder: Path) -> MindSporeCheckpoint:
    """An iteration folder of several ranks: metadata.json says which file holds which block of a tensor."""
    file = folder / METADATA
    opened: dict[str, File] = {}

    def open_once(name: str) -> File | None:
        if name not in opened and (folder / name).is_file():
            opened[name] = _open_file(folder / name)
        return opened.get(name)

    try:
        content = read_json(file)
        described, places = content["state_dict_metadata"], content["storage_data"]
        entries = {name: _pieces(folder, name, value, places, open_once) for name, value in described.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: not MindFormers' metadata ({type(error).__name__}: {error})") from error
    return MindSporeCheckpoint(folder, entries)


def _pieces(
    folder: Path,
    name: str,
    value: Mapping[str, Any],
    places: Mapping[str, Any],
    open_once: Callable[[str], File | None],
) -> Whole:
    shape = tuple(value["global_shape"])
    cuts = tuple(value["axis_fragmentations"])
    blocks = [(tuple(chunk["global_offset"]), tuple(chunk["local_shape"])) for chunk in value["chunk"]]
    numbered = all(len(key) == 1 and key[0] < math.prod(cuts) for key, _ in blocks)
    pieces = []
    for key, local in blocks:
        names = [place["file_name"] for place in places[str((name, key))]]
        holders = [file for one in names if (file := open_once(one)) is not None and name in file.entries]
        if not holders:
            raise CheckpointError(f"{folder}: block {key} of {name} is in none of {', '.join(names)}")
        offset = tuple(i * n for i, n in zip(_unravel(key[0], cuts), local, strict=True)) if numbered else key
        if tuple(holders[0].entries[name].shape) != local:
            held = list(holders[0].entries[name].shape)
            raise CheckpointError(f"{holders[0].path}: {name} is {held}, {METADATA} says {list(local)}")
        pieces.append(Piece(offset, local, holders[0]))
    if len({piece.offset for piece in pieces}) * math.prod(pieces[0].shape) != math.prod(shape):
        raise CheckpointError(f"{folder}: the {len(pieces)} blocks of {name} in {METADATA} do not make {list(shape)}")
    return Whole(pieces[0].file.entries[name].dtype, shape, tuple(pieces))


def _unravel(number: int, cuts: tuple[int, ...]) -> tuple[int, ...]:
    """Index along each dimension of block ``number``, the last dimension counting fastest.

    MindFormers' ``global_offset`` is such a number (checkpoint/sharded_tensor.py, ``_rank_id_with_slice_id``),
    not an offset in elements.
    """
    index = []
    for count in reversed(cuts):
        number, place = divmod(number, count)
        index.append(place)
    return tuple(reversed(index))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
