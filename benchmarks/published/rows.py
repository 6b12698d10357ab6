"""Rows of a table of published measurements, typed."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


class Skip(Exception):
    """A row that cannot be predicted; the message is the reason, without numbers, so that reasons can be counted."""


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        cells: the row as published, by column name.
        use / quality: what a list of recommended rows says the row is good for; empty where there is none.
    """

    cells: Mapping[str, str]
    use: str = ""
    quality: str = ""

    def text(self, column: str) -> str:
        """A cell as text; empty when it is."""
        return self.cells.get(column, "") or ""

    def number(self, column: str) -> float | None:
        """A cell as a number, or None when it is empty."""
        cell = self.text(column)
        return float(cell) if cell else None

    def whole(self, column: str, default: int | None = None) -> int:
        """A cell as a whole number. Raises Skip when it is empty and there is no default."""
        value = self.number(column)
        if value is not None:
            return int(value)
        if default is None:
            raise Skip(f"{column} is not stated")
        return default

    @property
    def source(self) -> str:
        """Short name of the publication."""
        return self.text("file")

    @property
    def id(self) -> str:
        """Name of the row in the table."""
        return self.text("id")


def read_rows(measurements: Path, subset: Path | None = None) -> Iterator[Row]:
    """Rows of a measurements table; with a subset, only those it lists, each with its use and quality."""
    listed = None
    if subset is not None:
        with subset.open(newline="") as file:
            listed = {entry["id"]: entry for entry in csv.DictReader(file)}
    with measurements.open(newline="") as file:
        for cells in csv.DictReader(file):
            if listed is None:
                yield Row(cells)
            elif entry := listed.get(cells["id"]):
                yield Row(cells, entry.get("use", ""), entry.get("quality", ""))
