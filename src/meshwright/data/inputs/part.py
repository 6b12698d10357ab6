"""What is read and what comes out of reading: parts of files, documents, and counts of what reading met."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

MAX_DOCUMENT_BYTES = 64 << 20
PLACES_KEPT = 5


@dataclass(frozen=True)
class Part:
    """Some of a file, from ``start`` to before ``end`` (None: to its end).

    .jsonl: the lines that start at these bytes; plain text: the documents that it is cut into at these bytes;
    .parquet: row groups; .arrow: record batches. Compressed text has one part.
    """

    path: Path
    start: int = 0
    end: int | None = None


class Source(NamedTuple):
    """A document as read: its file, where in it, and whether it had invalid UTF-8.

    ``at`` counts ``unit``: the ``byte`` at which its line or text starts (of the text, where that is compressed), or
    the ``row`` of a table, from 0.
    """

    text: str
    path: Path
    at: int
    unit: str
    repaired: bool

    def place(self) -> dict[str, str | int]:
        """Its ``file``, and its ``byte`` or ``row``."""
        return {"file": shown(self.path), self.unit: self.at}


def shown(path: str | Path) -> str:
    """A path, or words about it, as it can be printed: names may have bytes that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", errors="replace")


@dataclass
class Tally:
    """What reading met.

    Attributes:
        documents: handed out.
        empty: left out for being of white space only.
        too_long: left out for being longer than ``MAX_DOCUMENT_BYTES``.
        invalid_utf8: handed out with U+FFFD in the place of bytes that are not UTF-8.
        bytes_read: of the files, as they are on the disk.
        places: where the first documents of ``too_long`` are.
        pieces: documents by name of the text file that was cut into them.
    """

    documents: int = 0
    empty: int = 0
    too_long: int = 0
    invalid_utf8: int = 0
    bytes_read: int = 0
    places: list[str] = field(default_factory=list)
    pieces: Counter[str] = field(default_factory=Counter)

    def leave_out(self, place: str, size: int) -> None:
        """Count a document of ``size`` bytes that is too long."""
        self.too_long += 1
        if len(self.places) < PLACES_KEPT:
            self.places.append(f"{place} ({size / 1e6:.1f} MB)")

    def merge(self, other: Self) -> None:
        """Add what another tally met after this one."""
        self.documents += other.documents
        self.empty += other.empty
        self.too_long += other.too_long
        self.invalid_utf8 += other.invalid_utf8
        self.bytes_read += other.bytes_read
        self.places = (self.places + other.places)[:PLACES_KEPT]
        self.pieces.update(other.pieces)

    def notes(self) -> tuple[str, ...]:
        """Sentences for people: what was left out for its length and where, which texts were cut."""
        limit = f"{MAX_DOCUMENT_BYTES >> 20} MiB"
        notes = []
        if self.too_long:
            more = ", ..." if self.too_long > len(self.places) else ""
            notes.append(f"over {limit} and left out: {', '.join(self.places)}{more}")
        if self.pieces:
            first = [f"{name} ({count})" for name, count in list(self.pieces.items())[:PLACES_KEPT]]
            more = ", ..." if len(self.pieces) > len(first) else ""
            notes.append(f"over {limit} and cut into documents: {', '.join(first)}{more}")
        return tuple(notes)

    def as_json(self) -> dict[str, Any]:
        """All counts."""
        return {**vars(self), "pieces": dict(self.pieces)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The tally that ``as_json`` gave."""
        return cls(**{**content, "pieces": Counter(content["pieces"])})
