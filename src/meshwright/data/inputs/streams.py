"""Bytes of text files, plain or compressed, a piece at a time: memory is bounded whatever they unpack to."""

import contextlib
import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from meshwright.data.errors import DataError
from meshwright.data.inputs.part import Tally

CHUNK_BYTES = 1 << 20
BEYOND_BYTES = 64 << 10
LOOK_BYTES = 4096
COMPRESSED = (".gz", ".zst")
NOT_UTF8 = {b"\xff\xfe": "UTF-16 or UTF-32", b"\xfe\xff": "UTF-16", b"\0\0\xfe\xff": "UTF-32"}
NOT_TEXT = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh91AY&SY": "bzip2",
    b"PK\3\4": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"\x04\x22\x4d\x18": "lz4",
    b"PAR1\x15": "parquet",
    b"ARROW1\0\0": "Arrow",
    b"%PDF-": "PDF",
    b"\x89PNG\r\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
}


def compression_of(path: Path) -> str:
    """Suffix of the compression of a file, in lower case; empty where it has none."""
    suffix = path.suffix.lower()
    return suffix if suffix in COMPRESSED else ""


def chunks(path: Path, tally: Tally, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Bytes of a text file from ``start``; compressed ones are unpacked. Goes on beyond ``end`` in smaller steps.

    Raises:
        DataError: the file is not text, compressed data is damaged or cut off, or the file ends before ``end``.
        OSError: it cannot be read.
    """
    if compression_of(path):
        found = _unpacked(path, tally)
    else:
        found = _plain(path, tally, start, end)
    if not start:
        first = next(found, b"")
        _check_text(path, first)
        if first:
            yield first
    yield from found


def _plain(path: Path, tally: Tally, start: int, end: int | None) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        at = start
        while chunk := file.read(_step(at, end)):
            tally.bytes_read += len(chunk)
            at += len(chunk)
            yield chunk
    if end is not None and at < end:
        raise DataError(f"{path}: has become shorter: {end} bytes when the work began, now {at}")


def _step(at: int, end: int | None) -> int:
    if end is None:
        return CHUNK_BYTES
    return min(CHUNK_BYTES, end - at) if at < end else BEYOND_BYTES


def _unpacked(path: Path, tally: Tally) -> Iterator[bytes]:
    with open(path, "rb") as raw, _errors(path), _opened(path, raw) as file:
        if not raw.peek(1):
            raise EOFError
        before = 0
        while chunk := file.read(CHUNK_BYTES):
            tally.bytes_read += raw.tell() - before
            before = raw.tell()
            yield chunk
        tally.bytes_read += raw.tell() - before


def _opened(path: Path, raw: BinaryIO) -> Any:
    return gzip.GzipFile(fileobj=raw) if compression_of(path) == ".gz" else zstd_package(path).ZstdFile(raw)


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    damage: tuple[type[Exception], ...] = (zlib.error, gzip.BadGzipFile)
    if compression_of(path) == ".zst":
        damage = (zstd_package(path).ZstdError,)
    try:
        yield
    except EOFError:
        raise DataError(f"{path}: is cut off: its compressed data has no end") from None
    except damage as error:
        raise DataError(f"{path}: cannot be unpacked: {error}") from None


def zstd_package(path: Path) -> Any:
    """The package that unpacks .zst files, which Python has itself from 3.14 on.

    Raises:
        DataError: it is not installed.
    """
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise DataError(f"{path}: .zst files need another package: pip install 'meshwright[data]'") from None
    return zstd


def _check_text(path: Path, first: bytes) -> None:
    """Refuse what would otherwise be read as text of replacement characters and NULs."""
    for mark, encoding in NOT_UTF8.items():
        if first.startswith(mark):
            raise DataError(f"{path}: is {encoding} (it starts with that byte order mark); convert it to UTF-8")
    for magic, kind in NOT_TEXT.items():
        if first.startswith(magic):
            raise DataError(f"{path}: holds {kind} data, not text; give it the suffix of its format, or leave it out")
    look = first[:LOOK_BYTES]
    if look.count(0) * 4 > len(look):
        raise DataError(f"{path}: more than a quarter of it is NUL bytes: UTF-16, or not text; convert it to UTF-8")
