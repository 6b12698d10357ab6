"""Documents of the inputs of ``data prepare``, one after another, in an order that never changes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from meshwright.data.errors import DataError
from meshwright.data.inputs import arrow, jsonl, parquet, plain
from meshwright.data.inputs.find import LINES, find_files, find_inputs, format_of
from meshwright.data.inputs.part import Part, Source, Tally

__all__ = ["Part", "Source", "Tally", "find_files", "find_inputs", "parts_of", "read_parts"]

FORMATS: dict[str, ModuleType] = {
    **dict.fromkeys(LINES, jsonl),
    ".parquet": parquet,
    ".arrow": arrow,
}


def parts_of(path: Path, target_bytes: int) -> Iterator[tuple[Part, int]]:
    """A file in parts of about ``target_bytes`` (at least 1) of it, as far as its format can be cut, and their sizes.

    The sizes are in bytes of the file and add up to about its size. Nothing decides but what is in the file.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        yield from _format(path).cut(path, target_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_parts(parts: Sequence[Part], *, text_key: str, tally: Tally) -> Iterator[Source]:
    """Documents in order: rows of .jsonl, .ndjson, .jsonlines, .json, .parquet and .arrow files, others whole.

    Bytes that are not UTF-8 become U+FFFD and are counted. Documents of white space only are left out and counted, as
    are rows longer than ``MAX_DOCUMENT_BYTES``; plain text of such length is cut. Line ends stay as they are.

    Raises:
        DataError: a file cannot be read, or a row has no text under ``text_key``.
    """
    for part in parts:
        try:
            for source in _format(part.path).read(part, text_key, tally):
                if not source.text or source.text.isspace():
                    tally.empty += 1
                    continue
                tally.documents += 1
                tally.invalid_utf8 += source.repaired
                yield source
        except OSError as error:
            raise _unreadable(part.path, error) from error


def _format(path: Path) -> ModuleType:
    return FORMATS.get(format_of(path), plain)


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror}")
