"""Cleaning as a stage of preparation: shards of the inputs, each cleaned by one process, finished ones kept."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from meshwright.data.clean.cleaner import Cleaner, Cleaning
from meshwright.data.clean.report import CleanCounts
from meshwright.data.corpus import Tally, read_parts
from meshwright.data.shards import Shard, complete_file, shard_path

TEXT_KEY = "text"
CLEAN_COUNTS = ".json"
# Their versions change what is kept.
CLEAN_PACKAGES = ("spacy", "ftfy", "py3langid")


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
    return shard_path(directory, shard, CLEAN_COUNTS)


def total_clean_counts(directory: Path, shards: Sequence[Shard], examples: int) -> CleanCounts:
    """What the counts of finished shards add up to."""
    total = CleanCounts()
    for shard in shards:
        content = json.loads(counts_path(directory, shard).read_text("utf-8"))
        total.merge(CleanCounts.from_json(content), examples)
    return total
