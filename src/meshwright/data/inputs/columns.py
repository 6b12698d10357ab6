"""The text column of a table: which one it is, and its values as documents."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError
from meshwright.data.inputs.part import MAX_DOCUMENT_BYTES, Source, Tally, shown
from meshwright.data.text import decode_value


def pyarrow(path: Path) -> Any:
    """The package that reads tables.

    Raises:
        DataError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise DataError(f"{path}: {path.suffix} files need another package: pip install 'meshwright[data]'") from None
    return pyarrow


@contextlib.contextmanager
def damage_told(path: Path, kind: str) -> Iterator[None]:
    """What pyarrow raises for damaged data, as a DataError for a file of that kind."""
    arrow = pyarrow(path)
    try:
        yield
    except (arrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        # Arrow raises OSError for damaged data too, without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{path}: not a whole {kind} file: {error}") from None


def check_column(path: Path, schema: Any, text_key: str) -> None:
    """Refuse a table in which there is no text under ``text_key``.

    Raises:
        DataError: it names the columns that are there, or the type of the one that was asked for.
    """
    count = schema.names.count(text_key)
    if not count:
        there = ", ".join(map(repr, schema.names)) or "none"
        raise DataError(f"{path}: no column {text_key!r}; it has {there} (--text-key)")
    if count > 1:
        raise DataError(f"{path}: {count} columns are named {text_key!r}")
    kind = schema.field(text_key).type
    types = pyarrow(path).types
    value = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(test(value) for test in tests):
        raise DataError(f"{path}: column {text_key!r} is {kind}, not text")


def documents(path: Path, column: Any, first_row: int, tally: Tally) -> Iterator[Source]:
    """Documents of an array of text whose first value is that of ``first_row``; null is an empty text.

    Raises:
        pyarrow.ArrowInvalid: the array is damaged.
    """
    for row, buffer in enumerate(_buffers(path, column), start=first_row):
        if buffer is not None and buffer.size > MAX_DOCUMENT_BYTES:
            tally.leave_out(f"{shown(path)}, row {row}", buffer.size)
            continue
        text, repaired = ("", False) if buffer is None else decode_value(memoryview(buffer))
        yield Source(text, path, row, "row", repaired)


def _buffers(path: Path, column: Any) -> Iterator[Any]:
    """The bytes of each value, not copied; None where it is null."""
    arrow = pyarrow(path)
    if arrow.types.is_dictionary(column.type):
        values = list(_buffers(path, column.dictionary))
        for index in column.indices.to_pylist():
            if index is not None and not 0 <= index < len(values):
                raise arrow.ArrowInvalid(f"index {index} of a dictionary of {len(values)} values")
            yield None if index is None else values[index]
        return
    # As bytes: text may have invalid UTF-8, which is ours to repair.
    kinds = {
        arrow.string(): arrow.binary(),
        arrow.large_string(): arrow.large_binary(),
        arrow.string_view(): arrow.binary_view(),
    }
    raw = column.view(kinds.get(column.type, column.type))
    raw.validate(full=True)
    for value in raw:
        yield value.as_buffer() if value.is_valid else None
