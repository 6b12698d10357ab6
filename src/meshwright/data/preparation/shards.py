"""Shards of the inputs, and the files that a stage writes for each."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from meshwright.data.corpus import Part, parts_of

# Small enough for all cores to have some of a small corpus; large enough for few files where there is much.
SHARD_BYTES, LARGE_SHARD_BYTES = 4 << 20, 16 << 20
ENOUGH_SHARDS, MOST_SHARDS = 256, 10_000
PARTIAL = ".partial"


@dataclass(frozen=True)
class Shard:
    """Some of the inputs, in order; ``size`` is their bytes."""

    number: int
    parts: tuple[Part, ...]
    size: int


def plan_shards(files: Sequence[Path]) -> list[Shard]:
    """Inputs in shards of about ``shard_bytes``, as far as their formats can be cut (see ``parts_of``).

    Raises:
        DataError: a file cannot be read.
    """
    step = shard_bytes(sum(path.stat().st_size for path in files))
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


def shard_bytes(total: int) -> int:
    """Size of the shards of so many bytes of inputs."""
    return max(SHARD_BYTES, min(total // ENOUGH_SHARDS, LARGE_SHARD_BYTES), total // MOST_SHARDS)


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
