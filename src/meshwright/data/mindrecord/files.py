"""MindRecord 3.0 files, read without MindSpore: one file, or the set of files that one data set was sharded into.

Each file has an SQLite index beside it, ``FILE.db``, which says on which page and where each row is. Rows are read one
after another: memory is that of one row.
"""

import contextlib
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from meshwright.data.errors import DataError
from meshwright.data.mindrecord.header import LENGTH, Column, Header, has_header, read_header
from meshwright.data.mindrecord.values import Array, blob_value, raw_values, split_blob

INDEX_COLUMNS = (
    "ROW_ID, PAGE_ID_BLOB, PAGE_OFFSET_BLOB, PAGE_OFFSET_BLOB_END, PAGE_ID_RAW, PAGE_OFFSET_RAW, PAGE_OFFSET_RAW_END"
)

Value = Array | bytes | str | int | float


@dataclass(frozen=True)
class Row:
    """Where a row comes from, for messages, and the values of the columns that were asked for."""

    path: Path
    number: int
    values: dict[str, Value]

    def __str__(self) -> str:
        return f"{self.path}: row {self.number}"


@dataclass(frozen=True)
class Shard:
    """One file, its header checked; ``rows`` is how many its index names."""

    path: Path
    header: Header
    rows: int


@dataclass(frozen=True)
class MindRecord:
    """A data set of one or several files with the same schema, in the order in which MindSpore numbered them."""

    shards: tuple[Shard, ...]

    @property
    def columns(self) -> dict[str, Column]:
        """Columns by name."""
        return self.shards[0].header.columns

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(shard.rows for shard in self.shards)

    def read(self, columns: Collection[str]) -> Iterator[Row]:
        """Rows in order, file after file, with the named columns only.

        Raises:
            DataError: a row is not where the index says, or holds no value of the type of the schema.
        """
        for shard in self.shards:
            yield from _read(shard, columns)


def is_mindrecord(path: str | Path) -> bool:
    """Whether a path names a MindRecord file or set, even without an index, rather than a pair of token files."""
    files = (Path(path), *_first_of_sets(Path(path)))
    return any(Path(f"{file}.db").is_file() or (file.is_file() and has_header(file)) for file in files)


def open_mindrecord(path: str | Path) -> MindRecord:
    """Open the set that a file belongs to; ``path`` may also be its name without the number of the file.

    Raises:
        DataError: a file of the set or its index is missing or damaged, or the files do not belong together.
    """
    first = _first(Path(path))
    header = read_header(first)
    names = header.shards or (first.name,)
    # A lone file may have been renamed; the files of a set are found by the names that it was written under.
    paths = [first] if len(names) == 1 else [first.with_name(name) for name in names]
    return MindRecord(tuple(_open_shard(shard, number, header, first) for number, shard in enumerate(paths)))


def _first(path: Path) -> Path:
    if path.suffix == ".db":
        raise DataError(f"{path}: is the index; name the record file, {path.with_suffix('')}")
    if path.is_dir():
        raise DataError(f"{path}: is a directory; name a record file in it")
    if path.is_file():
        return path
    found = [file for file in _first_of_sets(path) if file.is_file()]
    if not found:
        raise DataError(f"{path}: no such file")
    if len(found) > 1:
        raise DataError(f"{path}: names the sets of {' and of '.join(map(str, found))}; name a file of one of them")
    return found[0]


def _first_of_sets(name: Path) -> list[Path]:
    """Where the first file of a set can be: MindSpore writes 1000 at most, with numbers as wide as the last one."""
    return [Path(f"{name}{zeros}") for zeros in ("0", "00", "000")]


def _open_shard(path: Path, number: int, expected: Header, named: Path) -> Shard:
    if not path.is_file():
        raise DataError(f"{path}: no such file; {named} names it as file {number} of its set")
    header = read_header(path)
    if header.shard != number or header.shards != expected.shards:
        raise DataError(f"{path}: is file {header.shard} of {list(header.shards)}, not file {number} of {named}'s set")
    if (header.columns, header.blob_columns) != (expected.columns, expected.blob_columns):
        raise DataError(f"{path}: its schema is not that of {named}")
    with _index(path) as index:
        (rows,) = index.execute("SELECT COUNT(*) FROM INDEXES").fetchone()
    if header.blob_columns and rows != header.rows:
        raise DataError(f"{path}.db: has {rows} rows, but the pages of {path} hold {header.rows}")
    return Shard(path, header, rows)


@contextlib.contextmanager
def _index(path: Path) -> Iterator[sqlite3.Connection]:
    file = Path(f"{path}.db")
    if not file.is_file():
        raise DataError(f"{file}: no such file; it is the index of {path}, and MindSpore writes both")
    try:
        # immutable: read-only folders, and no lock or journal beside somebody else's data.
        connection = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro&immutable=1", uri=True)
        with contextlib.closing(connection):
            yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second where even its message is damaged
        raise DataError(f"{file}: not the index of a MindRecord file, or a damaged one: {error}") from None


def _read(shard: Shard, columns: Collection[str]) -> Iterator[Row]:
    header = shard.header
    blobs = [name for name in header.blob_columns if name in columns]
    raws = [name for name in header.columns if name in columns and name not in blobs]
    with _index(shard.path) as index, open(shard.path, "rb") as file:
        places = index.execute(f"SELECT {INDEX_COLUMNS} FROM INDEXES ORDER BY ROW_ID")
        number = -1
        for number, (row_id, *place) in enumerate(places):
            values: dict[str, Value] = {}
            try:
                if row_id != number:
                    raise ValueError(f"the index goes on with row {row_id}")
                if blobs:
                    values |= _blobs(header, blobs, _bytes_at(file, header, *place[:3]))
                if raws:
                    values |= _raws(raws, _bytes_at(file, header, *place[3:]))
            except (ValueError, TypeError) as error:
                raise DataError(f"{shard.path}: row {number}: damaged: {error}") from None
            yield Row(shard.path, number, values)
    if number + 1 != shard.rows:
        raise DataError(f"{shard.path}.db: damaged: its rows end after {number + 1} of {shard.rows}")


def _bytes_at(file: BinaryIO, header: Header, page_id: int, start: int, end: int) -> bytes:
    page = header.pages.get(page_id)
    if page is None or not 0 <= start <= end - LENGTH.size <= page.used - LENGTH.size:
        raise ValueError(f"the index puts it at bytes {start} to {end} of page {page_id}, which has no such bytes")
    file.seek(page.start + start)
    raw = file.read(end - start)
    length = LENGTH.unpack_from(raw)[0] if len(raw) == end - start else -1
    if length != end - start - LENGTH.size:
        raise ValueError(f"byte {page.start + start} gives its length as {length}, the index {end - start - 8}")
    return raw[LENGTH.size :]


def _blobs(header: Header, names: list[str], blob: bytes) -> dict[str, Value]:
    parts = dict(zip(header.blob_columns, split_blob(blob, len(header.blob_columns)), strict=True))
    values: dict[str, Value] = {}
    for name in names:
        try:
            values[name] = blob_value(header.columns[name], parts[name])
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None
    return values


def _raws(names: list[str], packed: bytes) -> dict[str, Value]:
    found = raw_values(packed)
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"has no column {missing[0]!r}")
    for name in names:
        if not isinstance(found[name], (bytes, str, int, float)):
            raise ValueError(f"column {name!r}: {type(found[name]).__name__} is no type of a column")
    return {name: found[name] for name in names}
