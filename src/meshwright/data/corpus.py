"""Find text files and read documents from them, one after another, in an order that never changes."""

import glob
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.data.errors import DataError
from meshwright.data.text import decode, repair

DEFAULT_SUFFIXES = (".txt", ".jsonl")
NOT_TEXT = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".parquet", ".arrow", ".bin", ".idx", ".mindrecord")
COUNT_BYTES = 1 << 20


@dataclass
class Tally:
    """What reading met: documents handed out, empty ones dropped, ones with invalid UTF-8, bytes read."""

    documents: int = 0
    empty: int = 0
    invalid_utf8: int = 0
    bytes_read: int = 0


@dataclass(frozen=True)
class Part:
    """A file, or the lines of a .jsonl file that start at byte ``start`` or later and before byte ``end``."""

    path: Path
    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Source:
    """A document as read: its file, the byte in it where its line starts, whether it had invalid UTF-8."""

    text: str
    path: Path
    byte: int
    repaired: bool


def find_files(inputs: Sequence[str | Path], suffixes: Sequence[str] = ()) -> list[Path]:
    """Files named by ``inputs``: files, directories (searched through, in sorted order) and glob patterns.

    Directories yield files whose name ends in one of ``suffixes`` (default: .txt and .jsonl); a file named
    itself is taken whatever its suffix. Each file comes once, where it was first named.

    Raises:
        DataError: an input is missing, matches nothing, or is not text.
    """
    wanted = tuple(suffix if suffix.startswith(".") else f".{suffix}" for suffix in suffixes) or DEFAULT_SUFFIXES
    found: dict[Path, None] = {}
    for item in inputs:
        for path in _matches(str(item)):
            found.update(dict.fromkeys(_in_directory(path, wanted) if path.is_dir() else [_text_file(path)]))
    return list(found)


def _matches(item: str) -> list[Path]:
    if Path(item).exists():
        return [Path(item)]
    if not glob.has_magic(item):
        raise DataError(f"{item}: no such file or directory")
    matches = sorted(glob.glob(item, recursive=True))
    if not matches:
        raise DataError(f"{item}: the pattern matches nothing")
    return [Path(match) for match in matches]


def _in_directory(directory: Path, suffixes: tuple[str, ...]) -> list[Path]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    chosen = [path for path in files if path.name.endswith(suffixes)]
    if not chosen:
        others = Counter(path.suffix for path in files if path.suffix and path.suffix not in NOT_TEXT)
        known = ", ".join(f"{suffix} ({count})" for suffix, count in others.most_common(3))
        hint = f"; it has {known}: choose with --suffix" if known else ""
        raise DataError(f"{directory}: no file ends in {' or '.join(suffixes)}{hint}")
    return chosen


def _text_file(path: Path) -> Path:
    if path.suffix == ".mindrecord":
        raise DataError(f"{path}: holds token ids already: `meshwright data import` reads it")
    if path.suffix in NOT_TEXT:
        raise DataError(f"{path}: {path.suffix} files are not supported yet; give plain text or .jsonl")
    return path


def read_documents(files: Sequence[Path], *, text_key: str, tally: Tally) -> Iterator[str]:
    """Texts of the documents of whole files (see ``read_parts``)."""
    for source in read_parts([Part(path) for path in files], text_key=text_key, tally=tally):
        yield source.text


def read_parts(parts: Sequence[Part], *, text_key: str, tally: Tally) -> Iterator[Source]:
    """Documents in order: each line of a .jsonl file, else the whole file (held in memory).

    Bytes that are not UTF-8 become U+FFFD and are counted; documents of white space only are dropped and
    counted. Line ends stay as they are.

    Raises:
        DataError: a file cannot be read, or a .jsonl line is not an object with text under ``text_key``.
    """
    for part in parts:
        try:
            for source in _jsonl(part, text_key, tally) if part.path.suffix == ".jsonl" else _whole(part.path, tally):
                if not source.text or source.text.isspace():
                    tally.empty += 1
                    continue
                tally.documents += 1
                tally.invalid_utf8 += source.repaired
                yield source
        except OSError as error:
            raise DataError(f"{part.path}: cannot be read: {error.strerror}") from error


def _whole(path: Path, tally: Tally) -> Iterator[Source]:
    raw = path.read_bytes()
    tally.bytes_read += len(raw)
    text, repaired = decode(raw)
    yield Source(text, path, 0, repaired)


def _jsonl(part: Part, text_key: str, tally: Tally) -> Iterator[Source]:
    with open(part.path, "rb") as file:
        if part.start:
            # A line that starts before belongs to the part before, even where only its end is here.
            file.seek(part.start - 1)
            file.readline()
        at = file.tell()
        while part.end is None or at < part.end:
            raw = file.readline()
            if not raw:
                return
            tally.bytes_read += len(raw)
            if not raw.isspace():
                line, replaced = decode(raw)
                try:
                    text, repaired = repair(_text_of(line, text_key))
                except ValueError as error:
                    raise DataError(f"{part.path}:{_line_number(part.path, at)}: {error}") from None
                yield Source(text, part.path, at, replaced or repaired)
            at += len(raw)


def _line_number(path: Path, byte: int) -> int:
    """Number of the line that starts at ``byte``, from 1."""
    with open(path, "rb") as file:
        number = 1
        while byte > 0:
            chunk = file.read(min(COUNT_BYTES, byte))
            number += chunk.count(b"\n")
            byte -= len(chunk)
    return number


def _text_of(line: str, text_key: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is needed, found {type(row).__name__}")
    if text_key not in row:
        raise ValueError(f"no key {text_key!r}; it has {', '.join(map(repr, row)) or 'none'} (--text-key)")
    if not isinstance(row[text_key], str):
        raise ValueError(f"{text_key!r} is {type(row[text_key]).__name__}, not text")
    return str(row[text_key])
