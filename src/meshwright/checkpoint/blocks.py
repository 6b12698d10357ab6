"""Values of a block that torch.save wrote, read without torch.load: only the rows that are wanted, a few MiB at a time.

torch.load reads the whole block, and holds it beside the tensor that wants a part of it.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_AT_ONCE = 1 << 22
# A zip archive's local header: 30 bytes, the last four of which are the lengths of what follows it.
_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True)
class Stored:
    """A block in a file: ``start`` and ``length`` of what torch.save wrote, in bytes, and what the block was."""

    start: int
    length: int
    sizes: Sequence[int]
    dtype: torch.dtype


def read_part(file: io.FileIO, block: Stored, offsets: Sequence[int], target: Tensor) -> None:
    """Fill ``target`` with a part of a contiguous block: read are the wanted rows of its first dimension, whole.

    Args:
        offsets: of the part in the block. Its shape is that of ``target``, whose dtype and device may be others.

    Raises:
        ValueError: the file does not hold such a block there. OSError, zipfile.BadZipFile.
    """
    sizes = block.sizes
    if not target.numel():
        return
    if not sizes:
        sizes, offsets, target = (1,), (0,), target.unsqueeze(0)
    row_bytes = math.prod(sizes[1:]) * block.dtype.itemsize
    first = block.start + _values_at(_Slice(file, block), sizes[0] * row_bytes) + offsets[0] * row_bytes
    rows = len(target)
    buffer = torch.empty((min(rows, max(1, _AT_ONCE // row_bytes)), *sizes[1:]), dtype=block.dtype)
    columns = slices(offsets[1:], target.shape[1:])
    for row in range(0, rows, len(buffer)):
        part = buffer[: rows - row]
        file.seek(first + row * row_bytes)
        _read_exactly(file, part)
        target[row : row + len(part)].copy_(part[(slice(None), *columns)])


def slices(offsets: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The part of a tensor at ``offsets`` with shape ``sizes``, as an index."""
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))


def _values_at(stored: _Slice, size: int) -> int:
    """Where the values begin in what torch.save wrote: an archive with the values, uncompressed, in one record."""
    reader = io.BufferedReader(stored)
    with zipfile.ZipFile(reader) as archive:
        (record,) = [entry for entry in archive.infolist() if entry.filename.endswith("/data/0")]
    if record.file_size != size or record.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{record.file_size} bytes instead of {size}")
    reader.seek(record.header_offset)
    return record.header_offset + _HEADER.size + sum(_HEADER.unpack(reader.read(_HEADER.size)))


def _read_exactly(file: io.FileIO, target: Tensor) -> None:
    memory = memoryview(target.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    while memory:
        count = file.readinto(memory)
        if not count:
            raise ValueError(f"the file ends {len(memory)} bytes too early")
        memory = memory[count:]


class _Slice(io.RawIOBase):
    """A part of an open file as a file of its own."""

    def __init__(self, file: io.FileIO, block: Stored) -> None:
        self._file, self._start, self._length = file, block.start, block.length
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
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, min(len(buffer), self._length - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
