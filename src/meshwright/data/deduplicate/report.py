"""What deduplication took in and dropped."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from meshwright.data.clean.report import Size
from meshwright.data.deduplicate.rows import Bools, UInt64s
from meshwright.data.preparation.shards import write_json

FOUND = "duplicates.json"


@dataclass
class DuplicateCounts:
    """Counts over all shards.

    Attributes:
        read: documents compared, without those of corpora made before.
        exact: dropped since an earlier document has the same text.
        near: dropped for likeness only.
        clusters: groups of documents that repeat each other, with those of corpora made before.
        against: dropped documents, of ``exact`` and ``near``, whose group has a document of a corpus made before.
        examples: the first documents dropped. Each has ``kind`` (``exact`` or ``near``), ``file``, the ``byte`` or
            ``row`` where it starts, the start of its ``text``, and ``repeats``: the same of the document that stays, or
            ``corpus`` and ``document``, its number among those of a corpus made before, from 0.
    """

    read: Size = field(default_factory=Size)
    exact: Size = field(default_factory=Size)
    near: Size = field(default_factory=Size)
    clusters: int = 0
    against: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, characters: UInt64s, *, exact: Bools, near: Bools, before: Bools) -> None:
        """Count the documents of a shard.

        Args:
            characters: of each document, uint64 [documents].
            exact: which are dropped for having the text of an earlier one, bool [documents].
            near: which are dropped for likeness only, bool [documents].
            before: which are dropped and repeat one of a corpus made before, bool [documents].
        """
        for size, ours in ((self.read, characters), (self.exact, characters[exact]), (self.near, characters[near])):
            size.documents += len(ours)
            size.characters += int(ours.sum())
        self.against += int(before.sum())

    def save(self, directory: Path) -> None:
        """Write ``FOUND``."""
        write_json(directory / FOUND, asdict(self))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """What ``save`` wrote."""
        content = json.loads((directory / FOUND).read_bytes())
        return cls(**{**content, **{name: Size(**content[name]) for name in ("read", "exact", "near")}})
