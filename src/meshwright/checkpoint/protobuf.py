"""protobuf's wire format, as much as reading files of others takes (protobuf.dev, "Encoding")."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class TornMessage(ValueError):
    """Bytes that are no protobuf message, or only the beginning of one."""


def fields(content: bytes | mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, varint, start, stop) of each field of the message from ``at`` to ``end``.

    ``stop`` is -1 where the value is a varint; of others, ``start`` and ``stop`` are where the bytes lie.
    """
    while at < end:
        key, at = read_varint(content, at, end)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = read_varint(content, at, end)
            yield number, value, at, -1
            continue
        if wire == _BYTES:
            length, at = read_varint(content, at, end)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise TornMessage(f"byte {at}: wire type {wire}")
        if at + length > end:
            raise TornMessage(f"byte {at}: {length} bytes announced, {end - at} left")
        yield number, 0, at, at + length
        at += length


def read_varint(content: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the position after it."""
    value, start = 0, at
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise TornMessage(f"byte {start}: a number does not end")
