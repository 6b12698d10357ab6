"""MindSpore ``.ckpt`` files, read without MindSpore, one tensor at a time.

The file is a plain concatenation of protobuf messages (mindspore/train/checkpoint.proto)::

    message Checkpoint  { message Value { required string tag = 1;
                                          oneof value { TensorProto tensor = 2; MapTensorProto maptensor = 3; } }
                          repeated Value value = 1; }
    message TensorProto { repeated int64 dims = 1; required string tensor_type = 2; required bytes tensor_content = 3; }

A tensor of more than 512 MB is several consecutive values with the same tag and the shape of the whole. A file that
was saved with ``crc_check`` ends in ``crc_num`` and ten bytes, the big-endian CRC-32 of everything before.
"""

from __future__ import annotations

import math
import mmap
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.protobuf import TornMessage, fields, read_varint
from meshwright.checkpoint.safetensors_file import fill

DTYPES = {
    "Float64": torch.float64,
    "Float32": torch.float32,
    "Float16": torch.float16,
    "BFloat16": torch.bfloat16,
    "Int64": torch.int64,
    "Int32": torch.int32,
    "Int16": torch.int16,
    "Int8": torch.int8,
    "UInt64": torch.uint64,
    "UInt32": torch.uint32,
    "UInt16": torch.uint16,
    "UInt8": torch.uint8,
    "Bool": torch.bool,
}
# First four bytes of a block written with enc_key: AES-GCM, AES-CBC, SM4-CBC (mindspore/core utils/crypto.h).
_ENCRYPTED = {0x7F3A5ED8: "AES-GCM", 0x7F3A5ED9: "AES-CBC", 0x7F3A5EDA: "SM4-CBC"}
_CRC_MARK, _CRC_BYTES = b"crc_num", 10
_BLOCK = 2**24

Span = tuple[int, int]
"""Offset of the first byte in the file and the number of bytes."""


@dataclass(frozen=True)
class CkptEntry:
    """One tensor: ``kind`` is MindSpore's name of its dtype, ``spans`` where its bytes lie."""

    kind: str
    shape: tuple[int, ...]
    spans: tuple[Span, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor."""
        return DTYPES[self.kind]

    @property
    def size(self) -> int:
        """Bytes present in the file."""
        return sum(length for _, length in self.spans)


@dataclass(frozen=True)
class CkptFile:
    """A file that has been looked through: where its tensors lie, and the texts saved beside them."""

    path: Path
    entries: Mapping[str, CkptEntry]
    texts: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> CkptFile:
        """Find every tensor; a checksum, where there is one, is compared.

        Raises:
            CheckpointError: the file is encrypted, torn, not a MindSpore checkpoint, or holds what has no place in
                torch; the message says which, and names the parameter.
        """
        try:
            with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                _refuse_encrypted(path, content)
                end = _checked_end(path, content)
                values = [_value(path, content, start, stop) for start, stop in _values(path, content, end)]
        except TornMessage as error:
            raise CheckpointError(f"{path}: torn or not a MindSpore checkpoint ({error})") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        tensors = _joined(values)
        texts = {name: _text(path, entry) for name, entry in tensors.items() if entry.kind == "str"}
        entries = {name: _fitting(path, name, entry) for name, entry in tensors.items() if entry.kind != "str"}
        return cls(path, entries, texts)

    def read(self, name: str) -> Tensor:
        """A whole tensor."""
        entry = self.entries[name]
        content = torch.empty(entry.size, dtype=torch.uint8)
        with self.path.open("rb", buffering=0) as stream:
            filled = 0
            for start, length in entry.spans:
                stream.seek(start)
                fill(content[filled : filled + length].numpy().data, stream, self.path)
                filled += length
        return content.view(entry.dtype).reshape(entry.shape)


def _refuse_encrypted(path: Path, content: mmap.mmap) -> None:
    (mark,) = struct.unpack("<I", content[:4].ljust(4, b"\0"))
    if mark in _ENCRYPTED:
        raise CheckpointError(
            f"{path}: is encrypted ({_ENCRYPTED[mark]}); load it in MindSpore with its dec_key and save it again "
            "without enc_key"
        )


def _checked_end(path: Path, content: mmap.mmap) -> int:
    """Where the messages end: before the checksum, if there is one. Raises CheckpointError where it is wrong."""
    end = len(content) - len(_CRC_MARK) - _CRC_BYTES
    if end < 0 or content[end : end + len(_CRC_MARK)] != _CRC_MARK:
        return len(content)
    expected, found = int.from_bytes(content[-_CRC_BYTES:], "big"), 0
    for start in range(0, end, _BLOCK):
        found = zlib.crc32(content[start : min(start + _BLOCK, end)], found)
    if found != expected:
        raise CheckpointError(f"{path}: its checksum is {expected:08x}, its content gives {found:08x}: it is damaged")
    return end


def _values(path: Path, content: mmap.mmap, end: int) -> Iterator[Span]:
    """Start and stop of each ``Checkpoint.value``."""
    for number, _, start, stop in fields(content, 0, end):
        if number != 1 or stop < 0:
            raise CheckpointError(f"{path}: not a MindSpore checkpoint (field {number} at byte {start})")
        yield start, stop


def _value(path: Path, content: mmap.mmap, start: int, stop: int) -> tuple[str, CkptEntry]:
    name, entry = "", None
    for number, _, first, last in fields(content, start, stop):
        if number == 1:
            name = content[first:last].decode("utf-8")
        elif number == 2:
            entry = _tensor(path, content, first, last)
        elif number == 3:
            raise CheckpointError(f"{path}: {name} is a MapParameter (a table by keys), which no model here has")
    if not name or entry is None:
        raise CheckpointError(f"{path}: not a MindSpore checkpoint (a value without name or tensor at byte {start})")
    return name, entry


def _tensor(path: Path, content: mmap.mmap, start: int, stop: int) -> CkptEntry:
    shape: list[int] = []
    kind, span = "", (stop, 0)
    for number, varint, first, last in fields(content, start, stop):
        if number == 1 and last < 0:
            shape.append(varint)
        elif number == 1:
            while first < last:
                size, first = read_varint(content, first, last)
                shape.append(size)
        elif number == 2:
            kind = content[first:last].decode("ascii", "replace")
        elif number == 3:
            span = (first, last - first)
    return CkptEntry(kind, tuple(shape), (span,))


def _joined(values: list[tuple[str, CkptEntry]]) -> dict[str, CkptEntry]:
    """Slices of one tensor put together; a complete tensor that comes again replaces the first, as in MindSpore."""
    found: dict[str, CkptEntry] = {}
    last = ""
    for name, entry in values:
        before = found.get(name)
        if before is not None and name == last and before.size < _announced(before):
            entry = replace(before, spans=before.spans + entry.spans)
        found[name] = entry
        last = name
    return found


def _announced(entry: CkptEntry) -> int:
    """Bytes that the shape asks for."""
    return math.prod(entry.shape) * DTYPES[entry.kind].itemsize if entry.kind in DTYPES else 0


def _fitting(path: Path, name: str, entry: CkptEntry) -> CkptEntry:
    if entry.kind not in DTYPES:
        raise CheckpointError(f"{path}: {name} is of type {entry.kind}; legal: {', '.join(DTYPES)}")
    if entry.shape == (0,) and entry.size == entry.dtype.itemsize:
        # Some writers give a single number the shape [0]; MindSpore reads it as 0-d too.
        return replace(entry, shape=())
    if entry.size != _announced(entry):
        needed = f"{list(entry.shape)} {entry.kind} needs {_announced(entry)} bytes"
        raise CheckpointError(f"{path}: {name} {needed}, the file has {entry.size}")
    return entry


def _text(path: Path, entry: CkptEntry) -> str:
    (start, length) = entry.spans[0]
    with path.open("rb") as stream:
        stream.seek(start)
        return stream.read(length).decode("utf-32-le").rstrip("\0")
