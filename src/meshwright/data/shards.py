"""Shards of the inputs, and the files that a stage writes for each."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from meshwright.data.corpus import Part

SHARD_BYTES = 16 << 20
MOST_SHARDS = 10_000
PARTIAL = ".partial"


@dataclass(frozen=True)
class Shard:
    """Some of the inputs, in order; ``size`` is their bytes."""

    number: int
    parts: tuple[Part, ...]
    size: int


def plan_shards(files: Sequence[Path]) -> list[Shard]:
    """Inputs in shards of ``SHARD_BYTES`` or, where that would be over ``MOST_SHARDS``, of more; .jsonl files are cut.

    Depends on nothing but names and sizes.
    """
    sizes = [path.stat().st_size for path in files]
    step = max(SHARD_BYTES, sum(sizes) // MOST_SHARDS)
    shards: list[Shard] = []
    parts: list[Part] = []
    size = 0
    for path, file_size in zip(files, sizes, strict=True):
        for start, end in _cuts(path, file_size, step):
            parts.append(Part(path, start, end))
            size += end - start
            if size >= step:
                shards.append(Shard(len(shards), tuple(parts), size))
                parts, size = [], 0
    if parts:
        shards.append(Shard(len(shards), tuple(parts), size))
    return shards


def _cuts(path: Path, size: int, step: int) -> Iterator[tuple[int, int]]:
    """First byte and end of each part of a file: one part, except for .jsonl."""
    if path.suffix != ".jsonl":
        step = size
    for start in range(0, max(size, 1), max(step, 1)):
        yield start, min(start + step, size)


def shard_path(directory: Path, shard: Shard, suffix: str) -> Path:
    """Where a result of a shard is: NUMBER, six digits, and ``suffix``, which starts with a dot."""
    return directory / f"{shard.number:06}{suffix}"


@contextlib.contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears as ``path`` whole and on disk, or not at all.

    Raises:
        OSError: it cannot be written; the error names ``path``.
    """
    # Processes on other machines may write the same file at the same time, with the same bytes.
    temporary = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}{PARTIAL}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
