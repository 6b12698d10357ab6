"""Cleaning as a stage of preparation: shards of the inputs, each cleaned by one process, finished ones kept."""

import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meshwright.data.clean.cleaner import Cleaner, Cleaning
from meshwright.data.clean.report import CleanCounts
from meshwright.data.corpus import Part, Tally, read_parts
from meshwright.data.errors import DataError, DataWorkerError
from meshwright.data.pool import OrderedMap
from meshwright.data.progress import Progress

SHARD_BYTES = 16 << 20
DIRECTORY = "clean-"
TEXT_KEY = "text"
PACKAGES = ("meshwright", "spacy", "ftfy", "py3langid")


@dataclass(frozen=True)
class Shard:
    """Some of the inputs, in order; ``size`` is their bytes."""

    number: int
    parts: tuple[Part, ...]
    size: int


def plan_shards(files: Sequence[Path]) -> list[Shard]:
    """Inputs in shards of about ``SHARD_BYTES``; only .jsonl files are cut. Depends on nothing but names and sizes."""
    shards: list[Shard] = []
    parts: list[Part] = []
    size = 0
    for path in files:
        file_size = path.stat().st_size
        step = SHARD_BYTES if path.suffix == ".jsonl" else max(file_size, 1)
        for start in range(0, max(file_size, 1), step):
            end = min(start + step, file_size)
            parts.append(Part(path, start, end))
            size += end - start
            if size >= SHARD_BYTES:
                shards.append(Shard(len(shards), tuple(parts), size))
                parts, size = [], 0
    if parts:
        shards.append(Shard(len(shards), tuple(parts), size))
    return shards


class ShardCleaner:
    """Cleans one shard: NUMBER.jsonl in ``directory`` gets the documents kept, then NUMBER.json the counts.

    Both appear complete or not at all, so a shard that has its counts is finished.
    """

    def __init__(self, cleaning: Cleaning, text_key: str, directory: Path, examples: int) -> None:
        self._settings = (cleaning, text_key, directory, examples)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardCleaner, self._settings

    @cached_property
    def _cleaner(self) -> Cleaner:
        return self._settings[0].cleaner()

    def __call__(self, shard: Shard) -> int:
        """Clean a shard; its number of bytes.

        Raises:
            DataError: an input cannot be read.
        """
        _, text_key, directory, examples = self._settings
        counts, tally = CleanCounts(), Tally()
        temporary = directory / f"{shard.number:06}.jsonl.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            for source in read_parts(shard.parts, text_key=text_key, tally=tally):
                decision = self._cleaner(source.text)
                counts.add(source, decision, examples)
                if decision.text is not None:
                    file.write(json.dumps({TEXT_KEY: decision.text}, ensure_ascii=False) + "\n")
            counts.empty = tally.empty
            _sync(file)
        os.replace(temporary, text_path(directory, shard))
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(counts.as_json(), file)
            _sync(file)
        os.replace(temporary, counts_path(directory, shard))
        return shard.size


def text_path(directory: Path, shard: Shard) -> Path:
    """Where the cleaned documents of a shard are."""
    return directory / f"{shard.number:06}.jsonl"


def counts_path(directory: Path, shard: Shard) -> Path:
    """Where the counts of a shard are."""
    return directory / f"{shard.number:06}.json"


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def directory_name(files: Sequence[Path], cleaning: Cleaning, text_key: str, examples: int) -> str:
    """Name of the directory of finished shards: another for other inputs, settings or versions."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    about = [asdict(cleaning), text_key, examples, SHARD_BYTES, stats, [_version(name) for name in PACKAGES]]
    return f"{DIRECTORY}{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def clean_files(
    files: Sequence[Path],
    cleaning: Cleaning,
    directory: Path,
    *,
    text_key: str,
    examples: int,
    workers: int,
    show_progress: bool,
) -> tuple[list[Path], CleanCounts]:
    """Clean what is not finished in ``directory``; the .jsonl files of all shards, in order, and what they add up to.

    Raises:
        DataError: an input cannot be read, or a setting of ``cleaning`` is wrong.
        DataWorkerError: a worker process ended.
    """
    cleaning.cleaner()
    for other in directory.parent.glob(f"{DIRECTORY}*"):
        if other != directory:
            shutil.rmtree(other)
    directory.mkdir(exist_ok=True)
    shards = plan_shards(files)
    todo = [shard for shard in shards if not counts_path(directory, shard).exists()]
    done = sum(shard.size for shard in shards) - sum(shard.size for shard in todo)
    sizes: OrderedMap[Shard, int] = OrderedMap(
        ShardCleaner(cleaning, text_key, directory, examples),
        todo,
        workers=min(workers, len(todo)),
        ahead=2 * workers + 1,
        name=lambda shard: f"shard {shard.number}, which starts in {shard.parts[0].path}",
        finish=lambda size: size,
    )
    with sizes, Progress("cleaning", sum(shard.size for shard in shards), show=show_progress) as progress:
        progress.update(done)
        try:
            for size in sizes:
                done += size
                progress.update(done)
        except DataWorkerError as error:
            # What is wrong is the input, not the worker.
            if isinstance(error.__cause__, DataError):
                raise error.__cause__ from None
            raise
    counts = CleanCounts()
    for shard in shards:
        counts.merge(CleanCounts.from_json(json.loads(counts_path(directory, shard).read_text("utf-8"))), examples)
    return [text_path(directory, shard) for shard in shards], counts
