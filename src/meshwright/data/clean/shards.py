"""Cleaning as a stage of preparation: shards of the inputs, each cleaned by one process, finished ones kept."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from meshwright.data.clean.cleaner import Cleaner, Cleaning
from meshwright.data.clean.report import CleanCounts
from meshwright.data.clean.rows import row_of
from meshwright.data.clean.sample import Samples
from meshwright.data.preparation.documents import read_shard
from meshwright.data.preparation.input_groups import InputGroups
from meshwright.data.preparation.shards import Shard, complete_file, shard_path, write_json

CLEAN_COUNTS = ".json"
FORM = 4
"""Of the files of this stage; other whenever they change, so that no command goes on from those of an older one."""


@dataclass(frozen=True)
class ShardCleaner:
    """Cleans one shard: in ``directory`` NUMBER.jsonl gets the documents kept (see ``rows``), NUMBER.sample some of the
    text that is taken away, to estimate its tokens, then NUMBER.json the counts.

    Each appears complete or not at all, so a shard that has its counts is finished.

    Attributes:
        text_key: where the text is in a .jsonl row.
        examples: documents to keep as examples for each rule that drops some.
        groups: of the inputs, for counts of each.
        shards: number of all shards; the more, the fewer samples are taken from each.
    """

    cleaning: Cleaning
    text_key: str
    directory: Path
    examples: int
    groups: InputGroups
    shards: int

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @cached_property
    def _cleaner(self) -> Cleaner:
        return self.cleaning.cleaner()

    def __call__(self, shard: Shard) -> None:
        """Clean a shard.

        Raises:
            DataError: an input cannot be read, or has changed since the shard was planned.
            OSError: a result cannot be written.
        """
        counts, samples = CleanCounts(), Samples(shard.number, self.shards)
        group = lru_cache(maxsize=1)(self.groups.name)
        with complete_file(text_path(self.directory, shard)) as file:
            for source in read_shard(shard, self.text_key, counts.tally):
                decision = self._cleaner(source.text)
                counts.add(source, decision, group=group(source.path), examples=self.examples)
                if decision.text is None:
                    samples.drop(str(decision.rule), source.text)
                    continue
                if decision.text != source.text:
                    samples.edit(source.text, decision.text)
                file.write(row_of(source, decision.text))
        write_json(sample_path(self.directory, shard), samples.as_json())
        write_json(counts_path(self.directory, shard), counts.as_json())


def text_path(directory: Path, shard: Shard) -> Path:
    """Where the cleaned documents of a shard are."""
    return shard_path(directory, shard, ".jsonl")


def sample_path(directory: Path, shard: Shard) -> Path:
    """Where the sample of what was taken away from a shard is."""
    return shard_path(directory, shard, ".sample")


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


def clean_samples(directory: Path, shards: Sequence[Shard]) -> Iterator[dict[str, Any]]:
    """Samples of what was taken away from each shard (see ``sample.estimate_tokens``)."""
    for shard in shards:
        yield json.loads(sample_path(directory, shard).read_text("utf-8"))
