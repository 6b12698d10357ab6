"""Stages of preparation: what is done to each shard by one process, and what one process does for all of them.

A stage over shards calls a function that pickles with each shard. The function writes result files NUMBER.SUFFIX into
the directory of the stage with ``complete_file``, last the one that marks the shard as finished. Whatever ends the
work, a later run goes on with the shards that are not finished.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from meshwright.data.errors import DataError, DataWorkerError
from meshwright.data.pool import OrderedMap
from meshwright.data.preparation.shards import Shard, shard_path
from meshwright.data.progress import Progress


@dataclass(frozen=True)
class Task:
    """One of ``of`` processes, maybe on other machines, that share a stage: every ``of``-th shard, from ``number``."""

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """The task that ``K/N`` names.

        Raises:
            DataError: it names none.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not int(match[1]) < int(match[2]):
            raise DataError(f"task {text!r} must be K/N with K from 0 to N - 1, such as 0/8 to 7/8")
        return cls(int(match[1]), int(match[2]))

    def has(self, shard: Shard) -> bool:
        """Whether it does this shard."""
        return shard.number % self.of == self.number

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Task()


class Stage(Protocol):
    """What all stages have in common."""

    @property
    def title(self) -> str:
        """What it does, such as ``cleaning``."""

    @property
    def directory(self) -> Path:
        """Where its results are, and nothing else."""

    @property
    def local(self) -> bool:
        """Whether it is left to the machine that completes the corpus."""

    def finished(self) -> tuple[int, int]:
        """How many of its pieces are done, and how many there are."""

    def run(self, task: Task, *, workers: int, show_progress: bool) -> None:
        """Do what is not done and belongs to the task.

        Raises:
            DataError, OSError: an input is wrong or cannot be read, or a result cannot be written.
            DataWorkerError: a worker process ended, or failed otherwise.
        """


@dataclass(frozen=True)
class ShardStage:
    """Calls ``function`` with each shard; a finished shard has a file with the suffix ``marker``."""

    title: str
    directory: Path
    marker: str
    shards: Sequence[Shard]
    function: Callable[[Shard], None]
    local: bool = False

    def finished(self) -> tuple[int, int]:
        """Shards done, and all."""
        return len(self.shards) - len(self._unfinished()), len(self.shards)

    def _unfinished(self) -> list[Shard]:
        there = set(os.listdir(self.directory)) if self.directory.is_dir() else set()
        return [shard for shard in self.shards if shard_path(self.directory, shard, self.marker).name not in there]

    def run(self, task: Task, *, workers: int, show_progress: bool) -> None:
        """Do the shards of the task that are not finished, in ``workers`` processes (0: in this one)."""
        self.directory.mkdir(exist_ok=True)
        mine = [shard for shard in self.shards if task.has(shard)]
        todo = [shard for shard in self._unfinished() if task.has(shard)]
        total, done = sum(shard.size for shard in mine), len(mine) - len(todo)
        size = total - sum(shard.size for shard in todo)
        workers = min(workers, len(todo))
        results = OrderedMap(
            _Sized(self.function), todo, workers=workers, ahead=2 * workers + 1, name=_name, finish=_same
        )
        with results, Progress(self.title, total, pieces=f"of {len(mine)} shards", show=show_progress) as progress:
            progress.update(size, done)
            try:
                for shard_size in results.completed():
                    size, done = size + shard_size, done + 1
                    progress.update(size, done)
            except DataWorkerError as error:
                # What is wrong is an input or the disk, not the worker.
                if isinstance(error.__cause__, (DataError, OSError)):
                    raise error.__cause__ from None
                raise


@dataclass(frozen=True)
class SoleStage:
    """Calls ``function`` once, in the first task only; it writes the file ``marker`` last.

    ``size`` is the bytes that the progress given to the function is about.
    """

    title: str
    directory: Path
    marker: str
    size: int
    function: Callable[[Progress], None]
    local: bool = False

    def finished(self) -> tuple[int, int]:
        """1 or 0 of 1."""
        return int((self.directory / self.marker).exists()), 1

    def run(self, task: Task, *, workers: int, show_progress: bool) -> None:
        """Call the function, unless it is done."""
        if task.number == 0 and not self.finished()[0]:
            self.directory.mkdir(exist_ok=True)
            with Progress(self.title, self.size, show=show_progress) as progress:
                self.function(progress)


@dataclass(frozen=True)
class _Sized:
    """Does a shard and tells its size."""

    function: Callable[[Shard], None]

    def __call__(self, shard: Shard) -> int:
        self.function(shard)
        return shard.size


def _same(size: int) -> int:
    return size


def _name(shard: Shard) -> str:
    return f"shard {shard.number}, which starts in {shard.parts[0].path}"
