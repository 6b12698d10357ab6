"""Where documents lie in a stream of token files, so that attention can be kept inside each of them.

The borders are those of the index. End-of-text ids divide nothing: such an id may pad, or stand inside a document.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from meshwright.data.contents import document_bounds
from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset
from meshwright.data.order import Int64s


def document_starts(file: IndexedDataset, start: int, stop: int) -> Int64s:
    """Tokens of a file in [start, stop) that are the first of a document, int64 [documents that begin there].

    Reads no more of the index than two binary searches touch.

    Raises:
        DataError: the index is damaged.
    """
    width = file.dtype.itemsize
    # bisect, not np.searchsorted: arrays in an index file are not aligned, and numpy would copy all of them.
    low, high = (bisect_left(file.pointers, token * width) for token in (start, stop))
    first, last = (bisect_left(file.borders, sequence) for sequence in (low, high))
    starts = file.pointers[file.borders[first:last]] // width
    if len(starts) and not start <= starts.min() <= starts.max() < stop:
        raise DataError(f"{file.idx_path}: documents {first} to {last - 1}: not in the order of the token file")
    return starts


def only_single_tokens(file: IndexedDataset) -> bool:
    """Whether no document has more than one token. Reads the index only where there are as many documents as tokens."""
    if len(file.tokens) > file.documents:
        return False
    return bool(np.diff(document_bounds(file)).max(initial=0) <= 1)


def positions_in_documents(
    files: Sequence[IndexedDataset], file_starts: Sequence[int], start: int, length: int
) -> Int64s:
    """Position of each token of a window inside its document, int64 [length], from 0 at the start of the window.

    Args:
        file_starts: place in the stream of each file's first token, and the length of the stream.
        start: place in the stream of the window's first token.
    """
    begins = np.zeros(length, np.int64)
    for number in range(bisect_right(file_starts, start) - 1, len(files)):
        offset = start - file_starts[number]
        here = document_starts(files[number], max(offset, 0), offset + length) - offset
        begins[here] = here
        if file_starts[number + 1] >= start + length:
            break
    return np.arange(length) - np.maximum.accumulate(begins)
