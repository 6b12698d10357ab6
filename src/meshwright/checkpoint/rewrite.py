"""The same checkpoint in other shards, made by one process without a process group, one tensor at a time.

Memory: the largest tensor twice (the whole, and a part that is cut from it or goes into it), besides what torch itself
takes.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from meshwright.checkpoint.dcp_files import METADATA, Reader
from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch
from meshwright.checkpoint.files import FileRecord, SyncedWriter, hashed_file, remove_folder, to_json, write_bytes
from meshwright.checkpoint.locate import OWNER, beside, folder_name, next_sequence
from meshwright.checkpoint.manifest import MANIFEST, read_manifest, verify
from meshwright.checkpoint.store import STATE, TENSORS, commit, prepare, read_state

Sizes = tuple[int, ...]
_READ_BYTES = 1 << 22


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
            whole = _read_whole(source, reader, name, entry)
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


def _read_whole(source: Path, reader: Reader, name: str, entry: TensorStorageMetadata) -> Tensor:
    """Put a tensor together from its blocks. torch.load would hold every block twice besides the result."""
    whole = torch.empty(entry.size, dtype=entry.properties.dtype)
    for chunk in entry.chunks:
        place: _StorageInfo = reader.read_metadata().storage_data[MetadataIndex(name, chunk.offsets)]
        target = whole[_slices(chunk.offsets, chunk.sizes)]
        block = target if target.is_contiguous() else torch.empty(chunk.sizes, dtype=whole.dtype)
        try:
            with (source / place.relative_path).open("rb") as stream:
                _read_values(io.BufferedReader(_Slice(stream, place.offset, place.length)), block)
        except (OSError, zipfile.BadZipFile, ValueError) as error:
            raise CheckpointError(f"{source / place.relative_path}: {name}: {error}") from error
        if block is not target:
            target.copy_(block)
    return whole


def _read_values(file: IO[bytes], block: Tensor) -> None:
    """Fill ``block`` from what torch.save wrote: an archive with the values, uncompressed, in one record."""
    memory = memoryview(block.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    with zipfile.ZipFile(file) as archive:
        (record,) = [entry for entry in archive.infolist() if entry.filename.endswith("/data/0")]
        if record.file_size != block.nbytes:
            raise ValueError(f"{record.file_size} bytes instead of {block.nbytes}")
        with archive.open(record) as values:
            for start in range(0, block.nbytes, _READ_BYTES):
                part = values.read(min(_READ_BYTES, block.nbytes - start))
                memory[start : start + len(part)] = part


class _Slice(io.RawIOBase):
    """A part of an open file as a file of its own."""

    def __init__(self, stream: IO[bytes], start: int, length: int) -> None:
        self._stream, self._start, self._length = stream, start, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise OSError("seek before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        self._stream.seek(self._start + self._at)
        data = self._stream.read(max(0, min(len(buffer), self._length - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _slices(offsets: Iterable[int], sizes: Iterable[int]) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))


def _piece(whole: Tensor, part: Part) -> Tensor:
    """A copy of a block: what is saved must not bring the whole along."""
    return whole[_slices(part.offsets, part.sizes)].clone(memory_format=torch.contiguous_format)


def _require_whole(name: str, whole: Tensor, parts: Iterable[Part]) -> None:
    count = sum(torch.Size(part.sizes).numel() for part in parts)
    if count != whole.numel():
        raise CheckpointError(f"{name}: the parts have {count} of {whole.numel()} values")
