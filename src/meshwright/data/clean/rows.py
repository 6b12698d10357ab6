"""The rows of cleaned shards: what cleaning hands on of the documents that it keeps."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError
from meshwright.data.inputs.part import Source, Tally

TEXT_KEY = "text"
PLACE_KEY = "meshwright:place"
REPAIRED_KEY = "meshwright:repaired"


def row_of(source: Source, text: str) -> bytes:
    """The row of a document of which ``text`` is kept, with its line end."""
    repaired = {REPAIRED_KEY: True} if source.repaired else {}
    row = {TEXT_KEY: text, PLACE_KEY: source.place(), **repaired}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def read_rows(path: Path, tally: Tally) -> Iterator[Source]:
    """The documents of a cleaned shard, however long, in order; ``repaired`` is that of reading them before cleaning.

    Raises:
        DataError: the file is damaged.
        OSError: it cannot be read.
    """
    at = 0
    with open(path, "rb") as file:
        for line in file:
            row = _row(path, line)
            repaired = REPAIRED_KEY in row
            tally.documents += 1
            tally.invalid_utf8 += repaired
            tally.bytes_read += len(line)
            yield Source(row[TEXT_KEY], path, at, "byte", repaired)
            at += len(line)


def origin(source: Source) -> dict[str, Any]:
    """What ``source.place()`` of a document read from a cleaned shard was before.

    Raises:
        DataError: the file of the document is damaged.
        OSError: it cannot be read.
    """
    with open(source.path, "rb") as file:
        file.seek(source.at)
        return dict(_row(source.path, file.readline())[PLACE_KEY])


def _row(path: Path, line: bytes) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}: is damaged ({error}); remove {path.parent} and run again") from error
    return row
