"""Shards of the inputs, and the stages that work through them: one process per shard, finished ones kept.

A stage is a function of a shard that pickles. It writes result files NUMBER.SUFFIX into the directory of the stage with
``complete_file``, the one that says that the shard is finished last. Whatever ends the work, a later run goes on with
the shards that are not finished.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from meshwright.data.corpus import Part
from meshwright.data.errors import DataError, DataWorkerError
from meshwright.data.pool import OrderedMap
from meshwright.data.progress import Progress

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


@dataclass(frozen=True)
class Stage:
    """A stage of preparation.

    Attributes:
        title: what it does to shards, such as ``cleaning``.
        directory: where its results are, and nothing else.
        marker: suffix of the file that a finished shard has.
    """

    title: str
    directory: Path
    marker: str

    def path(self, shard: Shard, suffix: str) -> Path:
        """Where a result of a shard is."""
        return shard_path(self.directory, shard, suffix)

    def unfinished(self, shards: Sequence[Shard]) -> list[Shard]:
        """Those of ``shards`` that are yet to be done."""
        there = set(os.listdir(self.directory)) if self.directory.is_dir() else set()
        return [shard for shard in shards if self.path(shard, self.marker).name not in there]

    def run(
        self, function: Callable[[Shard], None], shards: Sequence[Shard], *, workers: int, show_progress: bool
    ) -> None:
        """Call ``function`` with each shard that is not finished, in ``workers`` processes (0: in this one).

        Raises:
            DataError, OSError: the function raised it.
            DataWorkerError: a worker process ended, or the function raised something else.
        """
        self.directory.mkdir(exist_ok=True)
        todo = self.unfinished(shards)
        total = sum(shard.size for shard in shards)
        done = total - sum(shard.size for shard in todo)
        workers = min(workers, len(todo))
        results = OrderedMap(
            _Sized(function),
            todo,
            workers=workers,
            ahead=2 * workers + 1,
            name=lambda shard: f"shard {shard.number}, which starts in {shard.parts[0].path}",
            finish=_same,
        )
        with results, Progress(self.title, total, show=show_progress) as progress:
            progress.update(done)
            try:
                for size in results:
                    done += size
                    progress.update(done)
            except DataWorkerError as error:
                # What is wrong is an input or the disk, not the worker.
                if isinstance(error.__cause__, (DataError, OSError)):
                    raise error.__cause__ from None
                raise


@dataclass(frozen=True)
class _Sized:
    """Does a shard and tells its size."""

    function: Callable[[Shard], None]

    def __call__(self, shard: Shard) -> int:
        self.function(shard)
        return shard.size


def _same(size: int) -> int:
    return size


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
