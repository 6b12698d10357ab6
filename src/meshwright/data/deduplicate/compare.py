"""Comparing as a stage of preparation: which documents have an equal key, one band or part of it at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.data.corpus import Part
from meshwright.data.deduplicate.rows import (
    EXACT,
    EXACT_ROWS,
    NO_KEY,
    Int64s,
    UInt64s,
    first_band,
    open_rows,
)
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.file_state import FileState
from meshwright.data.preparation.shards import Shard, complete_file, shard_path

PAIRS = ".pairs.npy"
KEY_BITS = 64
# Keys compared at a time: some 40 bytes each.
RANGE_DOCUMENTS = 1 << 26
# Keys read at a time, of which a range leaves a part: an earlier corpus is one file, however large.
READ_DOCUMENTS = 1 << 22


def pairs_path(directory: Path, comparison: Shard) -> Path:
    """Where the pairs of a comparison are."""
    return shard_path(directory, comparison, PAIRS)


@dataclass(frozen=True)
class Comparer:
    """Compares documents by one kind of key; NUMBER.pairs.npy in ``directory`` gets the pairs, int64 [2, pairs].

    Documents are numbered through all files. Of documents with an equal key each later one makes a pair with the first.

    Attributes:
        settings: as the keys were made.
        ranges: parts that each key is cut into by its upper bits, a power of two.
        directory: for the results.
    """

    settings: Deduplication
    ranges: int
    directory: Path

    @classmethod
    def of(cls, settings: Deduplication, documents: int, directory: Path) -> "Comparer":
        """The one for a number of documents: as few ranges as memory allows."""
        return cls(settings, 1 << max(0, (documents - 1) // RANGE_DOCUMENTS).bit_length(), directory)

    def comparisons(self, files: Sequence[Path], documents: int, states: Sequence[FileState] = ()) -> list[Shard]:
        """Its tasks: a range of the exact hash or of a band over all ``files`` of keys, exact ones first.

        Args:
            documents: in all files.
            states: of those files that others may change.
        """
        parts, size = tuple(Part(path) for path in files), KEY_BITS // 8 * documents
        kinds = self.settings.exact + (self.settings.bands if self.settings.near else 0)
        return [Shard(number, parts, size, tuple(states)) for number in range(kinds * self.ranges)]

    def is_exact(self, comparison: Shard) -> bool:
        """Whether pairs of a comparison have the same text."""
        return self.settings.exact and comparison.number < self.ranges

    def __call__(self, comparison: Shard) -> None:
        """Do one comparison.

        Raises:
            DataError: a file of keys cannot be read, or has changed.
            OSError: the result cannot be written.
        """
        # Before it is read, too: a file of another shape would fail in other words.
        comparison.check_unchanged()
        kind, number = divmod(comparison.number, self.ranges)
        if self.is_exact(comparison):
            first, count = EXACT, EXACT_ROWS
        else:
            first, count = first_band(self.settings) + kind - self.settings.exact, 1
        keys, documents = self._range([part.path for part in comparison.parts], slice(first, first + count), number)
        comparison.check_unchanged()
        pairs = equal_keys(keys, documents)
        with complete_file(pairs_path(self.directory, comparison)) as file:
            np.save(file, pairs)

    def _range(self, files: Sequence[Path], rows: slice, number: int) -> tuple[UInt64s, Int64s]:
        """Keys in a range, uint64 [rows, keys], and the numbers of their documents."""
        keys: list[UInt64s] = [np.empty((rows.stop - rows.start, 0), np.uint64)]
        documents: list[Int64s] = [np.empty(0, np.int64)]
        before = 0
        for path in files:
            columns = open_rows(path)[rows]
            for start in range(0, columns.shape[1], READ_DOCUMENTS):
                part = np.array(columns[:, start : start + READ_DOCUMENTS])
                ours = part[0] != NO_KEY
                if self.ranges > 1:
                    ours &= part[0] >> np.uint64(KEY_BITS + 1 - self.ranges.bit_length()) == number
                keys.append(part[:, ours])
                documents.append(np.flatnonzero(ours) + (before + start))
            before += columns.shape[1]
        return np.concatenate(keys, axis=1), np.concatenate(documents)


def equal_keys(keys: UInt64s, documents: Int64s) -> Int64s:
    """Pairs of the first document that has a key and each later one that has it.

    Args:
        keys: uint64 [rows, keys]; keys are equal where all rows are.
        documents: their numbers, each once, int64 [keys].

    Returns:
        int64 [2, pairs], firsts and later ones.
    """
    order = np.argsort(keys[0])
    ordered = keys[0][order]
    as_before = np.zeros(len(order) + 1, np.bool_)
    as_before[1:-1] = ordered[1:] == ordered[:-1]
    # Few keys are left; only those are put in order for good.
    order = order[as_before[1:] | as_before[:-1]]
    del ordered, as_before
    keys, documents = keys[:, order], documents[order]
    order = np.lexsort((documents, *keys[::-1]))
    keys, documents = keys[:, order], documents[order]
    new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(documents)]
    first = documents[np.maximum.accumulate(np.where(new, np.arange(len(documents)), 0))]
    return np.stack([first[~new], documents[~new]])
