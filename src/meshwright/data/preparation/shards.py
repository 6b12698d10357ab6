"""Shards of the inputs, and the files that a stage writes for each."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from meshwright.data.corpus import Part, parts_of
from meshwright.data.file_state import FileState, check_unchanged

# Small enough for all cores to have some of a small corpus; large enough for few files where there is much.
SHARD_BYTES, LARGE_SHARD_BYTES = 4 << 20, 16 << 20
ENOUGH_SHARDS, MOST_SHARDS = 256, 10_000
PARTIAL = ".partial"


@dataclass(frozen=True)
class Shard:
    """Some of the inputs, in order; ``size`` is their bytes, ``states`` what their files were when it was planned."""

    number: int
    parts: tuple[Part, ...]
    size: int
    states: tuple[FileState, ...] = ()

    def check_unchanged(self) -> None:
        """Refuse to have read what is not what was planned.

        Raises:
            DataError: a file is not what it was.
        """
        check_unchanged(self.states)


def plan_shards(files: Sequence[Path]) -> list[Shard]:
    """Inputs in shards of about ``shard_bytes``, as far as their formats can be cut (see ``parts_of``).

    Raises:
        DataError: a file cannot be read.
    """
    states = {path: FileState.of(path) for path in files}
    step = shard_bytes(sum(state.size for state in states.values()))
    shards: list[Shard] = []
    parts: list[Part] = []
    size = 0

    def add_shard() -> None:
        paths = dict.fromkeys(part.path for part in parts)
        shards.append(Shard(len(shards), tuple(parts), size, tuple(states[path] for path in paths)))

    for path in files:
        for part, part_size in parts_of(path, step):
            parts.append(part)
            size += part_size
            if size >= step:
                add_shard()
                parts, size = [], 0
    if parts:
        add_shard()
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
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            # numpy gives neither number nor reason where an array cannot be written.
            raise OSError(error.errno, error.strerror or f"cannot be written: {error}", str(path)) from error
        raise


def write_json(path: Path, content: Any, *, indent: int | None = None) -> None:
    """Write JSON with ``complete_file``; with an ``indent`` for people, and a line end."""
    text = json.dumps(content, indent=indent)
    with complete_file(path) as file:
        file.write((text if indent is None else f"{text}\n").encode())
