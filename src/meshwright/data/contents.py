"""What is inside a pair of token files: how often each id occurs, and which documents are there more than once."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset
from meshwright.data.loss_mask import LossMask
from meshwright.data.order import Int64s
from meshwright.data.progress import Progress

CHUNK_TOKENS = 1 << 20
# More than any vocabulary: what ids are counted up to where it is not known.
LARGEST_VOCAB = 1 << 22

Digests = npt.NDArray[np.uint64]


def document_bounds(data: IndexedDataset) -> Int64s:
    """First token of each document, then the number of tokens, int64 [documents + 1]."""
    ends = np.cumsum(data.lengths, dtype=np.int64)
    return np.concatenate((np.zeros(1, np.int64), ends))[data.borders]


@dataclass(frozen=True, kw_only=True)
class TokenHistogram:
    """How often ids occur.

    Attributes:
        vocab_size: ids are below it, where it is known.
        used: ids that occur.
        by_count: how many ids occur so often, by a range of counts; ids that never occur, where all are known.
        ids_for_share: how many of the most frequent ids make that share of all tokens.
        outside: tokens whose id is negative or not below the vocabulary; ``first_outside`` is the number of the first.
    """

    vocab_size: int | None
    used: int
    by_count: dict[str, int]
    ids_for_share: dict[str, int]
    outside: int
    first_outside: int | None


def count_tokens(
    data: IndexedDataset, vocab_size: int | None, progress: Progress
) -> tuple[npt.NDArray[np.int64], TokenHistogram]:
    """Occurrences of each id, int64 [ids], and their summary. Memory is 8 bytes per id and per token of a chunk."""
    limit = vocab_size or min(LARGEST_VOCAB, int(np.iinfo(data.dtype).max) + 1)
    counts = np.zeros(limit, np.int64)
    outside, first_outside = 0, None
    for start in range(0, len(data.tokens), CHUNK_TOKENS):
        chunk = data.tokens[start : start + CHUNK_TOKENS]
        progress.update(start * data.dtype.itemsize)
        if chunk.min() < 0 or chunk.max() >= limit:
            wrong = (chunk < 0) | (chunk >= limit)
            outside += int(wrong.sum())
            first_outside = start + int(wrong.argmax()) if first_outside is None else first_outside
            chunk = chunk[~wrong]
        counts += np.bincount(chunk, minlength=limit)
    return counts, TokenHistogram(
        vocab_size=vocab_size,
        used=int(np.count_nonzero(counts)),
        by_count=_by_count(counts, zeros=vocab_size is not None),
        ids_for_share=_ids_for_share(counts),
        outside=outside,
        first_outside=first_outside,
    )


def _by_count(counts: npt.NDArray[np.int64], *, zeros: bool) -> dict[str, int]:
    """Ids by how often they occur: never, then a power of ten after the other up to the largest count."""
    table = {"0": int((counts == 0).sum())} if zeros else {}
    low = 1
    while low <= counts.max():
        table[f"{low}-{10 * low - 1}"] = int(((counts >= low) & (counts < 10 * low)).sum())
        low *= 10
    return table


def _ids_for_share(counts: npt.NDArray[np.int64]) -> dict[str, int]:
    reached = np.cumsum(np.sort(counts[counts > 0])[::-1])
    if not len(reached):
        return {}
    return {f"{share}%": int(np.searchsorted(reached, reached[-1] * share / 100)) + 1 for share in (50, 90, 99)}


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """What a loss mask leaves.

    Attributes:
        tokens: supervised tokens.
        documents_without: documents that have none.
    """

    tokens: int
    documents_without: int


def count_supervised(mask: LossMask, bounds: Int64s) -> Supervision:
    """Count the bits of a mask. Memory is a byte per document and per token of a chunk.

    Raises:
        DataError: they are not as many as its header says.
    """
    found, tokens = np.zeros(len(bounds) - 1, np.bool_), 0
    for start in range(0, int(bounds[-1]), CHUNK_TOKENS):
        places = start + np.flatnonzero(mask.read(start, min(CHUNK_TOKENS, int(bounds[-1]) - start)))
        found[np.searchsorted(bounds, places, side="right") - 1] = True
        tokens += len(places)
    if tokens != mask.supervised:
        raise DataError(f"{mask.path}: damaged: {tokens} tokens are supervised, but its header says {mask.supervised}")
    return Supervision(tokens=tokens, documents_without=int(np.count_nonzero(~found)))


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Documents with the same tokens.

    Attributes:
        documents: documents that repeat an earlier one.
        most_repeated: number of the document that is there most often, the first of its kind.
        times: how often it is there.
        also_in_train: for a held-out split, its documents that are in the training split too.
    """

    documents: int
    most_repeated: int | None
    times: int
    also_in_train: int | None


def document_digests(data: IndexedDataset, bounds: Int64s, progress: Progress) -> Digests:
    """64 bits of BLAKE2b of the bytes of each document, uint64 [documents].

    Two different documents among ``n`` share them with a probability of about ``n**2 / 2**65``: 3 in 10000 for a
    hundred million documents.
    """
    raw = data.tokens.data.cast("B") if len(data.tokens) else memoryview(b"")
    digests = np.empty(data.documents, "<u8")
    ends = bounds * data.dtype.itemsize
    for number in range(data.documents):
        start, end = int(ends[number]), int(ends[number + 1])
        digests[number] = int.from_bytes(hashlib.blake2b(raw[start:end], digest_size=8).digest(), "little")
        progress.update(end)
    return digests


def find_duplicates(digests: Digests, train: Digests | None) -> Duplicates:
    """Compare the documents of a split, and those of a held-out split with the training split."""
    _, first, times = np.unique(digests, return_index=True, return_counts=True)
    most = int(times.argmax()) if len(times) else None
    repeated = most is not None and times[most] > 1
    return Duplicates(
        documents=len(digests) - len(first),
        most_repeated=int(first[most]) if repeated else None,
        times=int(times[most]) if repeated else 0,
        also_in_train=None if train is None else int(np.isin(digests, train).sum()),
    )
