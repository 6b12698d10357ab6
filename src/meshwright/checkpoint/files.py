"""Files that are either wholly on the disk or known to be missing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FileRecord:
    """What a finished file must look like: ``size`` in bytes and the SHA-256 of its content in hex."""

    size: int
    sha256: str


class HashingFile(io.FileIO):
    """A file that hashes what is written while it is written, so that nothing is read twice.

    Only for writing from front to back: a seek would make the hash lie, so it is refused.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        written = super().write(view) or 0
        self._hash.update(view[:written])
        self._size += written
        return written

    def seekable(self) -> bool:
        return False

    def record(self) -> FileRecord:
        return FileRecord(self._size, self._hash.hexdigest())


class SyncedWriter(io.BufferedWriter):
    """Closing it means that the bytes are on the disk."""

    def close(self) -> None:
        try:
            if not self.closed:
                self.flush()
                os.fsync(self.fileno())
        finally:
            super().close()


@contextmanager
def hashed_file(path: Path, records: dict[str, FileRecord]) -> Generator[SyncedWriter]:
    """Open ``path`` for writing; leave its size and hash in ``records`` by file name once it is synced."""
    raw = HashingFile(path)
    with raw, SyncedWriter(raw) as stream:
        yield stream
    records[path.name] = raw.record()


def to_json(value: Any) -> bytes:
    """Raises TypeError for what JSON cannot say. Floats keep every bit; NaN and infinities are allowed."""
    return json.dumps(value, indent=1).encode() + b"\n"


def write_bytes(path: Path, content: bytes) -> FileRecord:
    """Write and sync a small file."""
    records: dict[str, FileRecord] = {}
    with hashed_file(path, records) as stream:
        stream.write(content)
    return records[path.name]


def read_json(path: Path) -> Any:
    """Raises OSError when unreadable, ValueError when it is not JSON (a torn write, for example)."""
    return json.loads(path.read_text(encoding="utf-8"))


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    """Make the names inside ``path`` durable: without it a crash can lose a synced file's entry."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(path: Path, *, last: tuple[str, ...]) -> None:
    """Delete a folder so that the files named in ``last`` go last.

    They say whose folder it is: when the process is killed half way, the rest can still be recognised.
    """
    for entry in list(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name not in last:
            entry.unlink()
    shutil.rmtree(path)


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write to the file system of ``path`` or its nearest parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def human_bytes(count: int) -> str:
    """For people: ``1536`` -> ``1.5 KiB``."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
