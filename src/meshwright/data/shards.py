"""Shards of the inputs, and the files that a stage writes for each."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from meshwright.data.corpus import Part, parts_of

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
    """Inputs in shards of ``SHARD_BYTES`` or, where that would be over ``MOST_SHARDS``, of more (see ``parts_of``).

    Raises:
        DataError: a file cannot be read.
    """
    sizes = [path.stat().st_size for path in files]
    step = max(SHARD_BYTES, sum(sizes) // MOST_SHARDS)
    shards: list[Shard] = []
    parts: list[Part] = []
    size = 0
    for path in files:
        for part, part_size in parts_of(path, step):
            parts.append(part)
            size += part_size
            if size >= step:
                shards.append(Shard(len(shards), tuple(parts), size))
                parts, size = [], 0
    if parts:
        shards.append(Shard(len(shards), tuple(parts), size))
    return shards


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
