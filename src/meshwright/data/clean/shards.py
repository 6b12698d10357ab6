"""Cleaning as a stage of preparation: shards of the inputs, each cleaned by one process, finished ones kept."""

import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from meshwright.data.clean.cleaner import Cleaner, Cleaning
from meshwright.data.clean.report import CleanCounts
from meshwright.data.corpus import Tally, read_parts
from meshwright.data.shards import SHARD_BYTES, Shard, complete_file, plan_shards, shard_path
from meshwright.data.stages import WHOLE, ShardStage

DIRECTORY = "clean-"
TEXT_KEY = "text"
COUNTS = ".json"
PACKAGES = ("meshwright", "spacy", "ftfy", "py3langid")


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

    def __call__(self, shard: Shard) -> None:
        """Clean a shard.

        Raises:
            DataError: an input cannot be read.
            OSError: a result cannot be written.
        """
        _, text_key, directory, examples = self._settings
        counts, tally = CleanCounts(), Tally()
        with complete_file(text_path(directory, shard)) as file:
            for source in read_parts(shard.parts, text_key=text_key, tally=tally):
                decision = self._cleaner(source.text)
                counts.add(source, decision, examples)
                if decision.text is not None:
                    file.write(json.dumps({TEXT_KEY: decision.text}, ensure_ascii=False).encode() + b"\n")
        counts.empty = tally.empty
        with complete_file(counts_path(directory, shard)) as file:
            file.write(json.dumps(counts.as_json()).encode())


def text_path(directory: Path, shard: Shard) -> Path:
    """Where the cleaned documents of a shard are."""
    return shard_path(directory, shard, ".jsonl")


def counts_path(directory: Path, shard: Shard) -> Path:
    """Where the counts of a shard are."""
    return shard_path(directory, shard, COUNTS)


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
    shards = plan_shards(files)
    function = ShardCleaner(cleaning, text_key, directory, examples)
    stage = ShardStage("cleaning", directory, COUNTS, shards, function)
    stage.run(WHOLE, workers=workers, show_progress=show_progress)
    counts = CleanCounts()
    for shard in shards:
        counts.merge(CleanCounts.from_json(json.loads(counts_path(directory, shard).read_text("utf-8"))), examples)
    return [text_path(directory, shard) for shard in shards], counts
