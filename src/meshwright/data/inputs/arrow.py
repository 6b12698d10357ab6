"""Rows of Arrow files, among them those that Hugging Face datasets writes; mapped into memory, not read into it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError
from meshwright.data.inputs.columns import check_column, damage_told, documents, pyarrow
from meshwright.data.inputs.part import Part, Source, Tally

# Read between two looks at the size of the file.
CHECKED_CHARACTERS = 1 << 18
FILE_MAGIC = b"ARROW1"
FILE_HEADER_BYTES = 8
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


def cut(path: Path, target_bytes: int) -> Iterator[tuple[Part, int]]:
    """Parts of whole record batches, of about ``target_bytes`` where batches are smaller, and their sizes in bytes.

    Raises:
        DataError: the file is damaged or cut off.
    """
    with _mapped(path) as file:
        sizes = []
        for message in pyarrow(path).ipc.MessageReader.open_stream(file):
            _check_length(path, file)
            if message.type == "record batch":
                sizes.append(message.body.size)
    start, size = 0, 0
    for end, count in enumerate(sizes, start=1):
        size += count
        if size >= target_bytes or end == len(sizes):
            yield Part(path, start, end), size
            start, size = end, 0
    if not sizes:
        yield Part(path, 0, 0), path.stat().st_size


def read(part: Part, text_key: str, tally: Tally) -> Iterator[Source]:
    """Documents of the record batches of a part.

    Raises:
        DataError: the file is damaged, cut off or has become shorter, or has no column of text named ``text_key``.
    """
    with _mapped(part.path) as file:
        held: list[Source] = []
        size = 0
        for source in _rows(part, file, text_key, tally):
            held.append(source)
            size += len(source.text)
            if size >= CHECKED_CHARACTERS:
                # What handles them may take its time.
                yield from held
                held, size = [], 0
                _check_length(part.path, file)
        yield from held


def _rows(part: Part, file: Any, text_key: str, tally: Tally) -> Iterator[Source]:
    path = part.path
    ipc = pyarrow(path).ipc
    begin = file.tell()
    with ipc.open_stream(file) as reader:
        check_column(path, reader.schema, text_key)
        only_text = ipc.IpcReadOptions(included_fields=[reader.schema.names.index(text_key)], use_threads=False)
    file.seek(begin)
    with ipc.open_stream(file, options=only_text) as reader:
        row, at = 0, file.tell()
        for number, batch in enumerate(reader):
            if part.end is not None and number >= part.end:
                return
            if number >= part.start:
                yield from documents(path, batch.column(0), row, tally)
                tally.bytes_read += file.tell() - at
            row, at = row + batch.num_rows, file.tell()


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[Any]:
    """A file of either Arrow format, at its first message: both are a stream of messages from there."""
    with damage_told(path, "Arrow"):
        is_file = _is_file(path)
        with pyarrow(path).memory_map(str(path)) as file:
            file.seek(FILE_HEADER_BYTES if is_file else 0)
            yield file


def _check_length(path: Path, file: Any) -> None:
    """Refuse a file that no longer has all its bytes: the system ends a process that looks at what is gone of a map."""
    now = path.stat().st_size
    if now < file.size():
        raise DataError(f"{path}: has become shorter: {file.size()} bytes when the work began, now {now}")


def _is_file(path: Path) -> bool:
    """Whether it is of the file format, not the stream format.

    Raises:
        DataError: it does not end as files of its format do.
    """
    with open(path, "rb") as file:
        is_file = file.read(len(FILE_MAGIC)) == FILE_MAGIC
        end = FILE_MAGIC if is_file else STREAM_END
        file.seek(-min(len(end), path.stat().st_size), 2)
        if file.read() != end:
            raise DataError(f"{path}: not a whole Arrow file: its end is missing")
    return is_file
