"""Which tokens of a stream make a sample: windows at even distances, or windows that keep documents whole."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwright.data.contents import document_bounds
from meshwright.data.indexed import IndexedDataset


class Windows(Protocol):
    """The window of each sample. It has one token more than labels: its first token is none."""

    @property
    def count(self) -> int:
        """Number of samples."""
        ...

    def span(self, sample: int) -> tuple[int, int]:
        """Place of the first token in the stream, and number of labels, at least 1."""
        ...


@dataclass(frozen=True)
class EvenWindows:
    """Windows of ``seq_length`` labels that share one token with their neighbours.

    Attributes:
        tokens: of the stream.
        pad_last: take the rest that fills no window as a shorter one.
    """

    tokens: int
    seq_length: int
    pad_last: bool

    @property
    def count(self) -> int:
        """Number of samples."""
        labels = max(0, self.tokens - 1)
        return -(-labels // self.seq_length) if self.pad_last else labels // self.seq_length

    def span(self, sample: int) -> tuple[int, int]:
        """Place of the first token in the stream, and number of labels."""
        start = sample * self.seq_length
        return start, min(self.seq_length, self.tokens - 1 - start)


class DocumentWindows:
    """Windows of up to ``seq_length + 1`` tokens, each of as many whole documents as fit, in the order of the stream.

    A document that fits into no window is cut: it goes on in the next one, which begins with its last token of this
    one, and others may follow it there. Documents of one token that stand alone are left out: they have no label.

    Finding the windows takes about a second for each million; 12 bytes are kept for each.
    """

    def __init__(self, files: Sequence[IndexedDataset], seq_length: int) -> None:
        starts, lengths = array("q"), array("i")
        ends, size = _document_ends(files), seq_length + 1
        start = place = 0
        while ends and ends[-1] - start > 1:
            place = bisect_right(ends, start + size, place)
            whole = ends[place - 1] if place else 0
            stop = whole if whole > start else start + size
            if stop - start > 1:
                starts.append(start)
                lengths.append(stop - start - 1)
            start = stop if whole > start else stop - 1
        self._starts, self._lengths = np.frombuffer(starts, np.int64), np.frombuffer(lengths, np.int32)

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self._starts)

    def span(self, sample: int) -> tuple[int, int]:
        """Place of the first token in the stream, and number of labels."""
        return int(self._starts[sample]), int(self._lengths[sample])

    @property
    def labels(self) -> int:
        """Of all windows together."""
        return int(self._lengths.sum())


def _document_ends(files: Sequence[IndexedDataset]) -> "array[int]":
    """Where documents end in the stream of several files."""
    ends, before = array("q"), 0
    for file in files:
        ends.frombytes((document_bounds(file)[1:] + before).tobytes())
        before += len(file.tokens)
    return ends
