"""Rows of .jsonl files: one JSON object a line, the document under one key."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.data.errors import DataError
from meshwright.data.inputs.part import MAX_DOCUMENT_BYTES, Part, Source, Tally, shown
from meshwright.data.inputs.streams import chunks, compression_of
from meshwright.data.text import BYTE_ORDER_MARK, REPLACEMENT, decode_value, repair


class Line(NamedTuple):
    """A line: the byte where it starts, its bytes without line end (None: too long to be held), their number."""

    at: int
    raw: bytes | None
    size: int


def cut(path: Path, target_bytes: int) -> Iterator[tuple[Part, int]]:
    """Parts of about ``target_bytes`` and their sizes in bytes; compressed files are one."""
    size = path.stat().st_size
    if compression_of(path):
        yield Part(path), size
        return
    for start in range(0, max(size, 1), target_bytes):
        end = min(start + target_bytes, size)
        yield Part(path, start, end), end - start


def read(part: Part, text_key: str, tally: Tally) -> Iterator[Source]:
    """Documents of the lines that start in ``part``.

    A line is one object. Lines of white space do not count; of keys that come twice the last one does; null is an
    empty text; JSON as Python reads it, so NaN and lone surrogates are allowed.

    Raises:
        DataError: a line is not an object with text under ``text_key``; it has the file and the line.
    """
    decoder = _decoder(text_key)
    for line in _lines_of(part, tally):
        if line.raw is None:
            tally.leave_out(f"{shown(part.path)}, byte {line.at}", line.size)
            continue
        # Files put one after another may have a mark in the middle.
        raw = line.raw.removeprefix(BYTE_ORDER_MARK)
        if not raw or raw.isspace():
            continue
        try:
            text, repaired = decoder(raw).text, False
        except (ValueError, RecursionError):
            try:
                text, repaired = _exact(raw, text_key)
            except ValueError as error:
                raise DataError(f"{part.path}:{_line_number(part.path, line.at)}: {error}") from None
        yield Source(text, part.path, line.at, "byte", repaired)


def _lines_of(part: Part, tally: Tally) -> Iterator[Line]:
    # A line that starts before belongs to the part before, even where only its end is here.
    start = max(part.start - 1, 0)
    return _lines(chunks(part.path, tally, start, part.end), part, start, within=part.start > 0)


def _lines(found: Iterator[bytes], part: Part, at: int, *, within: bool) -> Iterator[Line]:
    """Lines of the bytes from ``at`` on that start in ``part``; ``within``: the first bytes end a line before it."""
    limit, end = MAX_DOCUMENT_BYTES, part.end
    held: list[bytes] = []
    size = 0
    for chunk in found:
        *ends, rest = chunk.split(b"\n")
        for raw in ends:
            size += len(raw)
            if held:
                raw = b"".join([*held, raw])
                held = []
            if not within:
                yield Line(at, raw if size <= limit else None, size)
            within = False
            at += size + 1
            size = 0
            if end is not None and at >= end:
                return
        size += len(rest)
        if within or size > limit:
            held = []
        elif rest:
            held.append(rest)
        if within and end is not None and at + size >= end:
            return
    if size and not within:
        yield Line(at, b"".join(held) if size <= limit else None, size)


@cache
def _decoder(text_key: str) -> Any:
    """Reads the text of a line and steps over all else; raises ValueError for what needs ``_exact``."""
    try:
        import msgspec
    except ImportError:
        raise DataError("the package `msgspec` is not installed: pip install 'meshwright[train]'") from None
    try:
        row = msgspec.defstruct("Row", [("text", str, msgspec.field(name=text_key))], gc=False)
    except ValueError:
        # Its names have no quotes, backslashes or control characters.
        return _not_read
    return msgspec.json.Decoder(row).decode


def _not_read(raw: bytes) -> Any:
    raise ValueError("left to json")


def _exact(raw: bytes, text_key: str) -> tuple[str, bool]:
    """The text of a line as Python's json reads it, and whether it has had to be repaired.

    Raises:
        ValueError: there is none; it says why.
    """
    line, replaced = decode_value(raw)
    value = _value(line, text_key)
    if value is None:
        return "", False
    if not isinstance(value, str):
        raise ValueError(f"{text_key!r} is {type(value).__name__}, not text")
    text, repaired = repair(value)
    return text, repaired or (replaced and REPLACEMENT in text)


def _value(line: str, text_key: str) -> Any:
    try:
        row = json.loads(line, parse_int=_integer)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is needed, found {type(row).__name__}")
    if text_key not in row:
        raise ValueError(f"no key {text_key!r}; it has {', '.join(map(repr, row)) or 'none'} (--text-key)")
    return row[text_key]


def _integer(digits: str) -> int:
    """An integer of that sign: its value is of no use here, and Python refuses those of many digits."""
    return int(digits[:20])


def _line_number(path: Path, byte: int) -> int:
    """Number of the line that starts at ``byte`` of the text, from 1."""
    number = 1
    for chunk in chunks(path, Tally()):
        number += chunk[:byte].count(b"\n")
        byte -= len(chunk)
        if byte <= 0:
            break
    return number
