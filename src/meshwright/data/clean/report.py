"""What cleaning took in, kept, edited and dropped, by rule, by input and by length."""

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self, TypeVar

from meshwright.data.clean.document import Decision
from meshwright.data.corpus import Source, Tally

EXAMPLE_CHARACTERS = 300


class _Counts(Protocol):
    def merge(self, other: Self) -> None: ...


T = TypeVar("T", bound=_Counts)
SizeType = TypeVar("SizeType", bound="Size")


@dataclass
class Size:
    """Documents and their characters."""

    documents: int = 0
    characters: int = 0

    def add(self, characters: int) -> None:
        """Count one document."""
        self.documents += 1
        self.characters += characters

    def merge(self, other: Self) -> None:
        """Add another size."""
        self.documents += other.documents
        self.characters += other.characters


@dataclass
class Dropped(Size):
    """What one rule dropped; each example has ``file``, ``byte`` (or ``row``) and the start of the ``text``."""

    examples: list[dict[str, Any]] = field(default_factory=list)

    def merge(self, other: Self) -> None:
        """Add what comes after."""
        super().merge(other)
        self.examples += other.examples


@dataclass
class Edited:
    """Documents that were edited in one way, and how many times that was done in all of them."""

    documents: int = 0
    times: int = 0

    def merge(self, other: Self) -> None:
        """Add more of them."""
        self.documents += other.documents
        self.times += other.times


@dataclass
class Group:
    """What came from one input: as read, and as kept."""

    read: Size = field(default_factory=Size)
    kept: Size = field(default_factory=Size)

    def merge(self, other: Self) -> None:
        """Add more of the same input."""
        self.read.merge(other.read)
        self.kept.merge(other.kept)


@dataclass
class CleanCounts:
    """Counts of documents as read and as kept; those that reading leaves out are only in ``tally``.

    Attributes:
        edited: documents kept with another text than they came with.
        edits: of documents kept, by what was done (``repair_unicode``, ``c4.short_line``, ``mask_pii.email`` ...).
        languages_found: as read, by what the model says, where it was asked.
        groups: by input.
        lengths_read / lengths_kept: documents by the power of 2 that their number of characters reaches.
    """

    read: Size = field(default_factory=Size)
    kept: Size = field(default_factory=Size)
    edited: int = 0
    tally: Tally = field(default_factory=Tally)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    edits: dict[str, Edited] = field(default_factory=dict)
    languages_found: dict[str, Size] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    lengths_read: dict[int, int] = field(default_factory=dict)
    lengths_kept: dict[int, int] = field(default_factory=dict)

    def add(self, source: Source, decision: Decision, *, group: str, examples: int) -> None:
        """Count one document, and keep its start as an example where there are fewer than ``examples``."""
        characters = len(source.text)
        for size in (self.read, self._group(group).read):
            size.add(characters)
        _count_length(self.lengths_read, characters)
        if decision.language is not None:
            self.languages_found.setdefault(decision.language, Size()).add(characters)
        if decision.text is None:
            self._drop(source, str(decision.rule), examples)
        else:
            self._keep(source, decision.text, decision, group)

    def _drop(self, source: Source, rule: str, examples: int) -> None:
        dropped = self.dropped.setdefault(rule, Dropped())
        dropped.add(len(source.text))
        if len(dropped.examples) < examples:
            start = source.text[:EXAMPLE_CHARACTERS]
            dropped.examples.append({**source.place(), "text": start})

    def _keep(self, source: Source, text: str, decision: Decision, group: str) -> None:
        for size in (self.kept, self._group(group).kept):
            size.add(len(text))
        _count_length(self.lengths_kept, len(text))
        self.edited += text != source.text
        for name, times in decision.edits.items():
            edited = self.edits.setdefault(name, Edited())
            edited.documents += 1
            edited.times += times

    def _group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group())

    def merge(self, other: Self, examples: int) -> None:
        """Add the counts of what comes after; the first ``examples`` of each rule stay."""
        self.read.merge(other.read)
        self.kept.merge(other.kept)
        self.edited += other.edited
        self.tally.merge(other.tally)
        _merge(self.dropped, other.dropped)
        _merge(self.edits, other.edits)
        _merge(self.languages_found, other.languages_found)
        _merge(self.groups, other.groups)
        for ours, theirs in ((self.lengths_read, other.lengths_read), (self.lengths_kept, other.lengths_kept)):
            for length, documents in theirs.items():
                ours[length] = ours.get(length, 0) + documents
        for dropped in self.dropped.values():
            del dropped.examples[examples:]

    def by_rule(self) -> dict[str, int]:
        """Documents dropped by each rule, most first."""
        return {rule: dropped.documents for rule, dropped in _most_first(self.dropped).items()}

    def as_json(self) -> dict[str, Any]:
        """All counts; rules and languages with most documents first, inputs and lengths in order."""
        return {
            **asdict(self),
            "tally": self.tally.as_json(),
            "dropped": {rule: asdict(dropped) for rule, dropped in _most_first(self.dropped).items()},
            "languages_found": {language: asdict(size) for language, size in _most_first(self.languages_found).items()},
            "lengths_read": dict(sorted(self.lengths_read.items())),
            "lengths_kept": dict(sorted(self.lengths_kept.items())),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The counts that ``as_json`` wrote."""
        return cls(
            edited=content["edited"],
            tally=Tally.from_json(content["tally"]),
            lengths_read={int(length): documents for length, documents in content["lengths_read"].items()},
            lengths_kept={int(length): documents for length, documents in content["lengths_kept"].items()},
            read=Size(**content["read"]),
            kept=Size(**content["kept"]),
            dropped={rule: Dropped(**counts) for rule, counts in content["dropped"].items()},
            edits={name: Edited(**counts) for name, counts in content["edits"].items()},
            languages_found={language: Size(**size) for language, size in content["languages_found"].items()},
            groups={name: Group(Size(**g["read"]), Size(**g["kept"])) for name, g in content["groups"].items()},
        )


def _count_length(lengths: dict[int, int], characters: int) -> None:
    reached = 1 << characters.bit_length() - 1
    lengths[reached] = lengths.get(reached, 0) + 1


def _merge(ours: dict[str, T], theirs: dict[str, T]) -> None:
    for name, counts in theirs.items():
        if name in ours:
            ours[name].merge(counts)
        else:
            ours[name] = counts


def _most_first(sizes: dict[str, SizeType]) -> dict[str, SizeType]:
    return dict(sorted(sizes.items(), key=lambda item: (-item[1].documents, item[0])))
