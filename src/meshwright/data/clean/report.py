"""PREFIX.clean.json: what cleaning took in, kept and dropped, by which rule, with examples."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from meshwright.data.clean.document import Decision
from meshwright.data.corpus import Source

FORMAT = "meshwright-clean"
REPORT_SUFFIX = ".clean.json"
EXAMPLE_CHARACTERS = 300


@dataclass
class Size:
    """Documents and their characters."""

    documents: int = 0
    characters: int = 0

    def add(self, documents: int, characters: int) -> None:
        """Count more."""
        self.documents += documents
        self.characters += characters


@dataclass
class Dropped(Size):
    """What one rule dropped; each example has ``file``, ``byte`` and the start of the ``text``."""

    examples: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class CleanCounts:
    """Counts of documents as read and as kept; those of white space only are ``empty`` and in none of the others.

    Attributes:
        edited: documents kept with another text than they came with.
        invalid_utf8: documents kept in which bytes that are not UTF-8 became U+FFFD.
    """

    read: Size = field(default_factory=Size)
    kept: Size = field(default_factory=Size)
    edited: int = 0
    empty: int = 0
    invalid_utf8: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def add(self, source: Source, decision: Decision, examples: int) -> None:
        """Count one document, and keep its start as an example where there are fewer than ``examples``."""
        self.read.add(1, len(source.text))
        if decision.text is not None:
            self.kept.add(1, len(decision.text))
            self.edited += decision.text != source.text
            self.invalid_utf8 += source.repaired
            return
        dropped = self.dropped.setdefault(str(decision.rule), Dropped())
        dropped.add(1, len(source.text))
        if len(dropped.examples) < examples:
            start = source.text[:EXAMPLE_CHARACTERS]
            dropped.examples.append({**source.place(), "text": start})

    def merge(self, other: Self, examples: int) -> None:
        """Add the counts of what comes after."""
        self.read.add(other.read.documents, other.read.characters)
        self.kept.add(other.kept.documents, other.kept.characters)
        self.edited += other.edited
        self.empty += other.empty
        self.invalid_utf8 += other.invalid_utf8
        for rule, theirs in other.dropped.items():
            ours = self.dropped.setdefault(rule, Dropped())
            ours.add(theirs.documents, theirs.characters)
            ours.examples = (ours.examples + theirs.examples)[:examples]

    def by_rule(self) -> dict[str, int]:
        """Documents dropped by each rule, most first."""
        return {rule: dropped.documents for rule, dropped in self._sorted()}

    def as_json(self) -> dict[str, Any]:
        """All counts, rules with most documents first."""
        return {**asdict(self), "dropped": {rule: asdict(dropped) for rule, dropped in self._sorted()}}

    def _sorted(self) -> list[tuple[str, Dropped]]:
        return sorted(self.dropped.items(), key=lambda item: (-item[1].documents, item[0]))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The counts that ``as_json`` wrote."""
        sizes = {name: Size(**content[name]) for name in ("read", "kept")}
        dropped = {rule: Dropped(**counts) for rule, counts in content["dropped"].items()}
        return cls(**{**content, **sizes, "dropped": dropped})


def save_report(path: Path, content: dict[str, Any]) -> None:
    """Write PREFIX.clean.json."""
    path.write_text(json.dumps({"format": FORMAT, "version": 1, **content}, indent=2) + "\n", encoding="utf-8")
