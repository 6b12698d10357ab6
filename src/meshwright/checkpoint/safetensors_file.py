"""safetensors files, written and read one tensor at a time.

The format: 8 bytes little-endian length of a JSON header, the header (name -> dtype, shape, byte range), then the
bytes of the tensors, C order, little-endian. Written here because the library's writer wants all tensors of a file
in memory at once.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.files import SyncedWriter

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# No header is longer than this in the library either; a longer one is some other file.
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: ``start`` is the offset of its first byte in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int = 0

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_size(self) -> int:
        """Bytes of one index of the first dimension; all of it for a 0-d tensor."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@dataclass(frozen=True)
class SafetensorsFile:
    """A file whose header has been read; tensors are read when they are asked for."""

    path: Path
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Read the header. Raises CheckpointError naming the file when it is missing, torn or something else."""
        try:
            size = path.stat().st_size
            with path.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                if length > min(_LONGEST_HEADER, size - 8):
                    raise ValueError(f"its header would be {length} bytes long")
                header: dict[str, Any] = json.loads(stream.read(length))
            metadata = header.pop("__metadata__", {})
            entries = {name: _entry(value, 8 + length) for name, value in header.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise CheckpointError(f"{path}: not a safetensors file ({type(error).__name__}: {error})") from error
        for name, entry in entries.items():
            if entry.start + entry.size > size:
                raise CheckpointError(f"{path}: {name} ends {entry.start + entry.size - size} bytes past the file")
        return cls(path, entries, metadata)

    def read(self, name: str) -> Tensor:
        """A whole tensor."""
        entry = self.entries[name]
        return self._bytes(entry.start, entry.size).view(entry.dtype).reshape(entry.shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Indices ``start`` to ``stop`` of the first dimension; only their bytes are read."""
        entry = self.entries[name]
        shape = (stop - start, *entry.shape[1:])
        part = self._bytes(entry.start + start * entry.row_size, (stop - start) * entry.row_size)
        return part.view(entry.dtype).reshape(shape)

    def _bytes(self, start: int, size: int) -> Tensor:
        content = torch.empty(size, dtype=torch.uint8)
        if size:
            with self.path.open("rb", buffering=0) as stream:
                stream.seek(start)
                fill(content.numpy().data, stream, self.path)
        return content


def write_safetensors(
    path: Path,
    entries: Mapping[str, Entry],
    read: Callable[[str], Tensor],
    *,
    metadata: Mapping[str, str],
) -> None:
    """Write tensors in the order of ``entries``, each read just before it is written, and sync the file.

    Args:
        entries: dtype and shape of each; ``start`` is not used.
        read: gives a tensor of that dtype and shape, in any memory.
    """
    with SyncedWriter(path.open("xb", buffering=0)) as stream:
        stream.write(_header(entries, metadata))
        for name, entry in entries.items():
            tensor = read(name)
            if (tensor.dtype, tuple(tensor.shape)) != (entry.dtype, entry.shape):
                raise CheckpointError(f"{name} is {tensor.dtype} {list(tensor.shape)}, not {entry}")
            content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            stream.write(content.numpy().data)


def shards(entries: Mapping[str, Entry], largest: int) -> list[dict[str, Entry]]:
    """Cut tensors, in order, into files of at most ``largest`` bytes of tensors; a bigger tensor has its own file."""
    parts: list[dict[str, Entry]] = [{}]
    filled = 0
    for name, entry in entries.items():
        if parts[-1] and filled + entry.size > largest:
            parts.append({})
            filled = 0
        parts[-1][name] = entry
        filled += entry.size
    return parts


def total_size(entries: Iterable[Entry]) -> int:
    """Bytes of all tensors."""
    return sum(entry.size for entry in entries)


def _entry(value: Mapping[str, Any], data: int) -> Entry:
    start, stop = value["data_offsets"]
    entry = Entry(DTYPES[value["dtype"]], tuple(value["shape"]), data + start)
    if stop - start != entry.size:
        raise ValueError(f"{stop - start} bytes for a tensor of {entry.size}")
    return entry


def _header(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, entry in entries.items():
        stop = offset + entry.size
        header[name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    # Tensors start at a multiple of 8, as the library has them.
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def fill(target: memoryview, stream: Any, path: Path) -> None:
    """Read until ``target`` is full. Raises CheckpointError where the file ends before."""
    while target:
        count = stream.readinto(target)
        if not count:
            raise CheckpointError(f"{path}: ends too early; it changed since it was opened")
        target = target[count:]
