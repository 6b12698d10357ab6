"""The same checkpoint in other shards, made by one process without a process group, one tensor at a time.

Memory: the largest tensor twice (the whole, and a part that is cut from it or goes into it), besides what torch itself
takes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from meshwright.checkpoint.blocks import slices
from meshwright.checkpoint.dcp_files import METADATA, Reader
from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch
from meshwright.checkpoint.files import FileRecord, SyncedWriter, hashed_file, remove_folder, to_json, write_bytes
from meshwright.checkpoint.locate import OWNER, beside, folder_name, next_sequence
from meshwright.checkpoint.manifest import MANIFEST, read_manifest, verify
from meshwright.checkpoint.store import STATE, TENSORS, commit, prepare, read_state

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A block of a tensor and the rank that writes it."""

    rank: int
    offsets: Sizes
    sizes: Sizes


Cut = Callable[[str, Sizes, int], Iterable[Part]]
"""From name, shape and bytes of a value to the parts of a tensor; together they are the whole, once."""


def rewrite(source: Path, root: Path, cut: Cut, *, ranks: int, changes: Mapping[str, Any]) -> Path:
    """Write the checkpoint ``source`` under ``root`` in the shards that ``cut`` asks for; returns the new folder.

    Args:
        ranks: that the new shards are for.
        changes: values that replace those of the same name in the run state. Random numbers of ranks are left out.

    Raises:
        CheckpointError: the source is damaged (every byte is compared with its checksum), the new one exists, the disk
            is full. Nothing is left of a checkpoint that was not finished.
    """
    if wrong := verify(source):
        raise CheckpointError(f"{source} is damaged: {'; '.join(wrong[:3])}")
    manifest, state = read_manifest(source), read_state(source)
    final = root / folder_name(manifest.step)
    if final.exists():
        raise CheckpointMismatch(f"{final} exists; choose another folder")
    partial = beside(final, "partial")
    prepare(final, partial, manifest.run_id)
    try:
        files = _write_tensors(source / TENSORS, partial / TENSORS, cut)
        records = {f"{TENSORS}/{name}": record for name, record in files.items()}
        records[STATE] = write_bytes(partial / STATE, to_json({**state, **changes}))
        commit(final, partial, records, replace(manifest, sequence=next_sequence(root), world_size=ranks))
    except BaseException:
        remove_folder(partial, last=(MANIFEST, OWNER))
        raise
    return final


def _write_tensors(source: Path, target: Path, cut: Cut) -> dict[str, FileRecord]:
    reader = Reader(source)
    metadata = reader.read_metadata()
    entries: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    records: dict[str, FileRecord] = {}
    with ExitStack() as stack:
        streams: dict[str, SyncedWriter] = {}
        for name, entry in metadata.state_dict_metadata.items():
            assert isinstance(entry, TensorStorageMetadata)
            whole = _read_whole(reader, name, entry)
            parts = list(cut(name, tuple(entry.size), whole.element_size()))
            _require_whole(name, whole, parts)
            for part in parts:
                file = f"__{part.rank}_0.distcp"
                if file not in streams:
                    streams[file] = stack.enter_context(hashed_file(target / file, records))
                offset = streams[file].tell()
                torch.save(_piece(whole, part), streams[file])
                places[MetadataIndex(name, part.offsets)] = _StorageInfo(file, offset, streams[file].tell() - offset)
            # Gone before the next one is read: two large ones often follow each other.
            del whole
            chunks = [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in parts]
            entries[name] = TensorStorageMetadata(entry.properties, entry.size, chunks)
    with hashed_file(target / METADATA, records) as stream:
        pickle.dump(replace(metadata, state_dict_metadata=entries, storage_data=places), stream)
    return records


def _read_whole(reader: Reader, name: str, entry: TensorStorageMetadata) -> Tensor:
    """Put a tensor together from its blocks, whose rows go straight to their places."""
    whole = torch.empty(entry.size, dtype=entry.properties.dtype)
    for chunk in entry.chunks:
        block = MetadataIndex(name, chunk.offsets)
        with reader.open(reader.place(block).relative_path) as file:
            reader.read_part(file, block, (0,) * whole.dim(), whole[slices(chunk.offsets, chunk.sizes)])
    return whole


def _piece(whole: Tensor, part: Part) -> Tensor:
    """A copy of a block: what is saved must not bring the whole along."""
    return whole[slices(part.offsets, part.sizes)].clone(memory_format=torch.contiguous_format)


def _require_whole(name: str, whole: Tensor, parts: Iterable[Part]) -> None:
    count = sum(torch.Size(part.sizes).numel() for part in parts)
    if count != whole.numel():
        raise CheckpointError(f"{name}: the parts have {count} of {whole.numel()} values")
