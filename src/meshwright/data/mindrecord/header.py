"""The header of one MindRecord file, version 3.0: schema, pages and the names of the other files of its set.

Layout, as MindSpore 2.10.0 writes it (mindspore/ccsrc/minddata/mindrecord/io/shard_writer.cc): uint64 length of the
JSON header, little-endian, the header, zeros up to ``header_size``, then pages ``page_size`` apart, of which the last
one ends where its content ends.
"""

import json
import struct
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, BinaryIO

from meshwright.data.errors import DataError
from meshwright.data.file_state import told_if_unreadable

VERSION = "3.0"
LENGTH = struct.Struct("<Q")
# MindSpore refuses to write headers above this, so a larger one means that the file is something else.
LARGEST_HEADER = 128 << 20


@dataclass(frozen=True)
class Column:
    """One column of the schema; ``shape`` is None for scalars, strings and bytes, and holds -1 for any size."""

    name: str
    type: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return self.type if self.shape is None else f"{self.type} {list(self.shape)}"


@dataclass(frozen=True)
class Page:
    """Bytes of one page: where it starts in the file, and how many are used."""

    start: int
    used: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says about itself.

    Attributes:
        columns: by name, in the order of the schema.
        blob_columns: columns that are stored in blob pages, in the order in which they are stored.
        pages: by page number.
        rows: rows that the blob pages hold.
        shards: names of all files of the set, this one included, without folders.
    """

    columns: dict[str, Column]
    blob_columns: tuple[str, ...]
    pages: dict[int, Page]
    rows: int
    shards: tuple[str, ...]
    shard: int


def has_header(path: Path) -> bool:
    """Whether a file begins as MindRecord files do: with a length and JSON."""
    with open(path, "rb") as file:
        return _length(file) > 0


def read_header(path: Path) -> Header:
    """Read the header and hold it against the size of the file.

    Raises:
        DataError: not a MindRecord file, of another version, truncated, or with a header that contradicts itself.
    """
    with told_if_unreadable(path):
        size = path.stat().st_size
        with open(path, "rb") as file:
            content = _content(path, size, file)
    if (version := content.get("version")) != VERSION:
        raise DataError(f"{path}: MindRecord version {version!r}; only {VERSION!r} is known")
    try:
        header = _header(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not a complete MindRecord header: {type(error).__name__}: {error}") from None
    missing = [name for name in header.blob_columns if name not in header.columns]
    if missing:
        raise DataError(f"{path}: the schema stores column {missing[0]!r} but does not describe it")
    _check_pages(path, size, header, content["page_size"])
    return header


def _content(path: Path, size: int, file: BinaryIO) -> dict[str, Any]:
    if not (length := _length(file)):
        raise DataError(f"{path}: byte 0: no length and JSON header: not a MindRecord file, or an encrypted one")
    if LENGTH.size + length > size:
        raise DataError(f"{path}: truncated at byte {size}: its header ends at byte {LENGTH.size + length}")
    try:
        content: dict[str, Any] = json.loads(b"{" + file.read(length - 1))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: byte 8: no JSON header: not a MindRecord file, or a damaged one: {error}") from None
    return content


def _length(file: BinaryIO) -> int:
    """Bytes of the JSON header, of which the first is read too; 0 where there is none."""
    start = file.read(LENGTH.size + 1)
    length: int = LENGTH.unpack_from(start)[0] if start.endswith(b"{") and len(start) > LENGTH.size else 0
    return length if length <= LARGEST_HEADER else 0


def _header(content: dict[str, Any]) -> Header:
    (schema,) = content["schema"]
    start, distance = index(content["header_size"]), index(content["page_size"])
    pages = content["page"]
    return Header(
        columns={
            name: Column(name, str(field["type"]), tuple(map(index, field["shape"])) if "shape" in field else None)
            for name, field in schema["schema"].items()
        },
        blob_columns=tuple(map(str, schema["blob_fields"])),
        pages={
            index(page["page_id"]): Page(start + index(page["page_id"]) * distance, index(page["page_size"]))
            for page in pages
        },
        rows=max((index(page["end_row_id"]) for page in pages if page["page_type"] == "BLOB_DATA"), default=0),
        shards=tuple(Path(name).name or "?" for name in content["shard_addresses"]),
        shard=index(content["shard_id"]),
    )


def _check_pages(path: Path, size: int, header: Header, page_size: int) -> None:
    for number, page in header.pages.items():
        if page.start < 0 or not 0 <= page.used <= page_size:
            raise DataError(f"{path}: page {number} says it uses {page.used} bytes of {page_size} from {page.start}")
        if page.start + page.used > size:
            raise DataError(f"{path}: truncated at byte {size}: page {number} ends at byte {page.start + page.used}")
