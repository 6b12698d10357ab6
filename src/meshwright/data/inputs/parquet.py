"""Rows of .parquet files: only the text column is read, some rows at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.data.inputs.columns import check_column, damage_told, documents
from meshwright.data.inputs.part import Part, Source, Tally

BATCH_ROWS = 4
BUFFER_BYTES = 1 << 20


def cut(path: Path, target_bytes: int) -> Iterator[tuple[Part, int]]:
    """Parts of whole row groups, of about ``target_bytes`` of the file where groups are smaller, and their sizes.

    Raises:
        DataError: the file is damaged.
    """
    with _opened(path) as file:
        rows = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    bytes_per_row = path.stat().st_size / max(sum(rows), 1)
    start, size = 0, 0.0
    for end, count in enumerate(rows, start=1):
        size += count * bytes_per_row
        if size >= target_bytes or end == len(rows):
            yield Part(path, start, end), round(size)
            start, size = end, 0.0
    if not rows:
        yield Part(path, 0, 0), path.stat().st_size


def read(part: Part, text_key: str, tally: Tally) -> Iterator[Source]:
    """Documents of the row groups of a part.

    Raises:
        DataError: the file is damaged, or has no column of text named ``text_key``.
    """
    path = part.path
    with _opened(path) as file:
        check_column(path, file.schema_arrow, text_key)
        groups = range(part.start, file.metadata.num_row_groups if part.end is None else part.end)
        row = sum(file.metadata.row_group(number).num_rows for number in range(part.start))
        bytes_per_row = path.stat().st_size / max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=[text_key], use_threads=False):
            # A name with a dot brings the column inside another one, too.
            yield from documents(path, batch.column(text_key), row, tally)
            row += batch.num_rows
            tally.bytes_read += round(batch.num_rows * bytes_per_row)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with damage_told(path, "parquet"):
        from pyarrow import parquet

        # A buffer keeps it from reading a column of a row group in one go.
        with parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            yield file
