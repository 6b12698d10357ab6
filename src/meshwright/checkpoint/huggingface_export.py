"""From a checkpoint of any layout to a Hugging Face model folder, one tensor in memory at a time."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.checkpoint.dcp_files import Reader
from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch
from meshwright.checkpoint.files import free_bytes, human_bytes, sync_folder, to_json, write_bytes
from meshwright.checkpoint.huggingface import INDEX, WEIGHTS
from meshwright.checkpoint.ranks import Ranks
from meshwright.checkpoint.safetensors_file import Entry, shards, total_size, write_safetensors
from meshwright.checkpoint.store import TENSORS, tensor_metadata
from meshwright.checkpoint.tensors import mismatches, read_tensors, require_fit
from meshwright.model.families import FAMILIES
from meshwright.spec.huggingface import family_of, to_config_json
from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import Shape, parameter_shapes

MINDSPORE_INDEX = "param_name_map.json"
SHARD_SIZE = 5 * 10**9
"""Bytes of tensors in one file at most: what transformers writes."""


@dataclass(frozen=True)
class Exported:
    """What was written: ``files`` of weights, ``tensors`` in them, ``size`` of these in bytes."""

    folder: Path
    files: int
    tensors: int
    size: int


def export_checkpoint(
    checkpoint: Path,
    out: Path,
    spec: ModelSpec,
    *,
    prefix: str,
    dtype: torch.dtype | None = None,
    shard_size: int = SHARD_SIZE,
    config: Mapping[str, Any] | None = None,
    others: Mapping[str, bytes] | None = None,
) -> Exported:
    """Write the weights of ``checkpoint`` under Hugging Face names, with config.json.

    Rows of the vocabulary padding are left out; a tied head has no tensor and config.json says that it is tied.

    Args:
        prefix: of the weights' names in the checkpoint.
        dtype: of the tensors written; None keeps each one's own.
        config: more keys of config.json.
        others: more files by name.

    Raises:
        CheckpointMismatch: the checkpoint is not of this model, or no family of Hugging Face has its features.
        CheckpointError: the checkpoint is not complete, or ``out`` is in use.
        OSError: the disk is too small or fails; ``out`` does not exist then.
    """
    try:
        names = FAMILIES[family_of(spec)]
    except ValueError as error:
        raise CheckpointMismatch(str(error)) from error
    reader = PaddedReader.open(checkpoint, spec, prefix)
    ours = {names.theirs(name): name for name in reader.shapes}
    entries = {theirs: Entry(dtype or reader.dtypes[name], reader.shapes[name]) for theirs, name in ours.items()}

    def read(theirs: str) -> Tensor:
        return reader.read(ours[theirs]).to(entries[theirs].dtype)

    settings = to_config_json(spec) | {"torch_dtype": torch_dtype(entries)} | dict(config or {})
    files = {"config.json": to_json(settings), **(others or {})}
    return write_folder(out, entries, read, shard_size=shard_size, files=files)


@dataclass(frozen=True)
class PaddedReader:
    """The weights of a checkpoint, without the rows that fill up the vocabulary.

    Attributes:
        shapes: of each parameter, without padding.
        dtypes: as stored.
    """

    checkpoint: Path
    prefix: str
    shapes: Mapping[str, Shape]
    padded: Mapping[str, Shape]
    dtypes: Mapping[str, torch.dtype]
    files: Reader

    @classmethod
    def open(cls, checkpoint: Path, spec: ModelSpec, prefix: str) -> PaddedReader:
        """Raises CheckpointMismatch listing what differs from the model."""
        stored = tensor_metadata(checkpoint)
        padded = parameter_shapes(spec, padded=True)
        wanted = {prefix + name: (tuple(shape), torch.float32) for name, shape in padded.items()}
        lines = mismatches(wanted, stored, expected=lambda name: name.startswith(prefix), cast=True)
        require_fit(checkpoint, lines)
        dtypes = {name: stored[prefix + name][1] for name in padded}
        return cls(checkpoint, prefix, parameter_shapes(spec), padded, dtypes, Reader(checkpoint / TENSORS))

    def read(self, name: str) -> Tensor:
        """One parameter."""
        tensor = torch.empty(self.padded[name], dtype=self.dtypes[name])
        wanted = {self.prefix + name: tensor}
        read_tensors(self.checkpoint / TENSORS, wanted, Ranks(alone=True), reader=self.files)
        return tensor[: self.shapes[name][0]]


def write_folder(
    out: Path,
    entries: Mapping[str, Entry],
    read: Callable[[str], Tensor],
    *,
    shard_size: int = SHARD_SIZE,
    files: Mapping[str, bytes],
    kind: str = "pt",
) -> Exported:
    """Write a model folder beside its place and rename it when it is complete.

    Args:
        files: everything but the weights, by name.
        kind: the ``format`` that the safetensors files name: pt, or ms for MindSpore, which has an index of its own.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} exists already; name a new folder")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _require_space(out, total_size(entries.values()))
        count = _write_weights(partial, entries, read, shard_size, kind)
        for name, content in files.items():
            write_bytes(partial / name, content)
        sync_folder(partial)
        os.replace(partial, out)
        sync_folder(out.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Exported(out, count, len(entries), total_size(entries.values()))


def _write_weights(
    folder: Path, entries: Mapping[str, Entry], read: Callable[[str], Tensor], shard_size: int, kind: str
) -> int:
    parts = shards(entries, shard_size)
    names = [WEIGHTS]
    if len(parts) > 1:
        names = [f"model-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)]
    for name, part in zip(names, parts, strict=True):
        write_safetensors(folder / name, part, read, metadata={"format": kind})
    if len(parts) > 1:
        places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        index = {"metadata": {"total_size": total_size(entries.values())}, "weight_map": places}
        name, content = (MINDSPORE_INDEX, places) if kind == "ms" else (INDEX, index)
        write_bytes(folder / name, to_json(content))
    return len(parts)


def _require_space(out: Path, needed: int) -> None:
    free = free_bytes(out.absolute())
    if needed > free:
        detail = f"the weights need {human_bytes(needed)}, {human_bytes(free)} are free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {detail}", str(out))


def torch_dtype(entries: Mapping[str, Entry]) -> str:
    """What config.json calls the format of the weights."""
    return str(next(iter(entries.values())).dtype).removeprefix("torch.")
