"""Values of MindRecord rows: arrays and bytes from blob pages, scalars and strings from raw pages.

Layout, as MindSpore 2.10.0 writes it (mindspore/ccsrc/minddata/mindrecord/meta/shard_column.cc). Blob of a row: the
bytes of its one blob column, or for several, in stored order, uint64 big-endian size and bytes of each. Integer arrays
are compressed: uint32 big-endian count, a code of 2 bits per value (0 to 3 for int8, int16, int32, int64), four to a
byte with the first in the highest bits, then the values, each in its own width, little-endian. Float arrays are plain.
Raw row: a msgpack map (msgpack.org, specification 2017).
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.mindrecord.header import Column

INTEGERS: dict[str, np.dtype] = {"int32": np.dtype("<i4"), "int64": np.dtype("<i8")}
FLOATS: dict[str, np.dtype] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
WIDTHS = np.array([1, 2, 4, 8])
SHIFTS = np.array([6, 4, 2, 0], np.uint8)

Array = npt.NDArray[Any]


def split_blob(blob: bytes, columns: int) -> list[bytes]:
    """The bytes of each blob column of a row. Raises ValueError where sizes do not add up."""
    if columns == 1:
        return [blob]
    parts, at = [], 0
    for _ in range(columns):
        end = at + 8 + int.from_bytes(blob[at : at + 8], "big")
        if at + 8 > len(blob) or end > len(blob):
            raise ValueError(f"a column ends at byte {end} of {len(blob)}")
        parts.append(blob[at + 8 : end])
        at = end
    if at != len(blob):
        raise ValueError(f"its columns end at byte {at} of {len(blob)}")
    return parts


def blob_value(column: Column, raw: bytes) -> Array | bytes:
    """A bytes or array column; arrays have the dtype and shape of the schema.

    Raises:
        ValueError: the bytes are no such value.
    """
    if column.shape is None:
        return raw
    if column.type in INTEGERS:
        flat: Array = _integers(raw, INTEGERS[column.type])
    elif column.type in FLOATS:
        flat = np.frombuffer(raw, FLOATS[column.type])
    else:
        raise ValueError(f"arrays of {column.type} are not known")
    return flat.reshape(column.shape)


def _integers(raw: bytes, dtype: np.dtype) -> Array:
    count = int.from_bytes(raw[:4], "big")
    start = 4 + -(-count // 4)
    if len(raw) < start:
        raise ValueError(f"{len(raw)} bytes are too few for {count} integers")
    packed = np.frombuffer(raw, np.uint8, start - 4, 4)
    codes = ((packed[:, None] >> SHIFTS) & 3).reshape(-1)[:count]
    widths = WIDTHS[codes]
    needed = start + int(widths.sum())
    if len(raw) != needed:
        raise ValueError(f"{len(raw)} bytes, but its {count} integers need {needed}")
    if count and (codes == codes[0]).all():
        found: Array = np.frombuffer(raw, f"<i{widths[0]}", count, start)
    else:
        found = _mixed_widths(np.frombuffer(raw, np.uint8, offset=start), widths)
    values: Array = found.astype(dtype)
    if found.itemsize > dtype.itemsize and (wrong := found != values).any():
        raise ValueError(f"position {wrong.argmax()} is {found[wrong.argmax()]}, which is no {dtype}")
    return values


def _mixed_widths(raw: npt.NDArray[np.uint8], widths: npt.NDArray[np.int64]) -> Array:
    """The values, each as wide as the widest of them."""
    starts = np.cumsum(widths) - widths
    out = np.empty(len(widths), f"<i{widths.max(initial=1)}")
    for width in WIDTHS.tolist():
        chosen = widths == width
        out[chosen] = raw[starts[chosen, None] + np.arange(width)].view(f"<i{width}")[:, 0]
    return out


def raw_values(packed: bytes) -> dict[str, Any]:
    """The map of a raw row. Raises ValueError where the bytes are no msgpack map."""
    try:
        value, end = _unpack(packed, 0)
    except (IndexError, struct.error, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not msgpack: {error}") from None
    if not isinstance(value, dict) or end != len(packed):
        raise ValueError(f"not one msgpack map: {type(value).__name__}, {end} of {len(packed)} bytes")
    return value


_FIXED = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCA: ">f", 0xCB: ">d", **{0xCC + number: f">{code}" for number, code in enumerate("BHIQbhiq")}}
_SIZED: dict[int, tuple[int, str]] = {
    0xC4: (1, "bin"), 0xC5: (2, "bin"), 0xC6: (4, "bin"),
    0xD9: (1, "str"), 0xDA: (2, "str"), 0xDB: (4, "str"),
    0xDC: (2, "array"), 0xDD: (4, "array"), 0xDE: (2, "map"), 0xDF: (4, "map"),
}  # fmt: skip


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    code, at = data[at], at + 1
    if code <= 0x7F or code >= 0xE0:
        return code - 256 * (code >= 0xE0), at
    if code in _FIXED:
        return _FIXED[code], at
    if code in _NUMBERS:
        return struct.unpack_from(_NUMBERS[code], data, at)[0], at + struct.calcsize(_NUMBERS[code])
    if code < 0xC0:
        kind, count = ("map", code & 15) if code < 0x90 else ("array", code & 15) if code < 0xA0 else ("str", code & 31)
    else:
        size, kind = _SIZED[code]
        count, at = int.from_bytes(data[at : at + size], "big"), at + size
    return _COLLECT[kind](data, at, count)


def _bytes(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    if at + count > len(data):
        raise IndexError(f"a value ends at byte {at + count} of {len(data)}")
    return data[at : at + count], at + count


def _text(data: bytes, at: int, count: int) -> tuple[str, int]:
    raw, at = _bytes(data, at, count)
    return raw.decode("utf-8"), at


def _items(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, at = _unpack(data, at)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    flat, at = _items(data, at, 2 * count)
    return dict(zip(flat[::2], flat[1::2], strict=True)), at


_COLLECT: dict[str, Callable[[bytes, int, int], tuple[Any, int]]] = {
    "bin": _bytes,
    "str": _text,
    "array": _items,
    "map": _map,
}
