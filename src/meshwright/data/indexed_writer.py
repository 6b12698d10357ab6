"""Write token files (`indexed_format`), a document at a time or from the lengths of all."""

import os
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from meshwright.data.errors import DataError
from meshwright.data.indexed_format import (
    CODE_OF_DTYPE,
    HEADER,
    MAGIC,
    Tokens,
    bin_path,
    dtype_for_vocab,
    idx_path,
    strip_suffix,
)
from meshwright.data.loss_mask import MaskWriter
from meshwright.data.own_labels import remove_mask

LONGEST_DOCUMENT = 2**31 - 1
BORDERS_AT_ONCE = 1 << 20


def write_index(path: Path, lengths: npt.NDArray[np.int32], dtype: np.dtype) -> None:
    """Write an ``.idx`` file for documents of ``lengths`` tokens (int32 [documents]) of ``dtype``."""
    write_index_in_parts(path, lambda: (lengths,), len(lengths), dtype)


def write_index_in_parts(
    path: Path, read: Callable[[], Iterable[npt.NDArray[np.int32]]], documents: int, dtype: np.dtype
) -> None:
    """Write an ``.idx`` file with no more in memory than one part of the lengths.

    Args:
        read: gives the tokens of each document in parts, int32 [documents of the part]; called once for each section.
        documents: how many there are in all parts.
    """
    with open(path, "wb") as file:
        file.write(HEADER.pack(MAGIC, 1, CODE_OF_DTYPE[dtype], documents, documents + 1))
        for lengths in read():
            file.write(lengths.astype("<i4", copy=False).data)
        end = 0
        for lengths in read():
            ends = np.cumsum(lengths, dtype="<i8")
            file.write((end + (ends - lengths) * dtype.itemsize).data)
            end += int(ends[-1]) * dtype.itemsize if len(ends) else 0
        for first in range(0, documents + 1, BORDERS_AT_ONCE):
            file.write(np.arange(first, min(first + BORDERS_AT_ONCE, documents + 1), dtype="<i8").data)
        file.flush()
        os.fsync(file.fileno())


def check_documents(
    tokens: Tokens,
    lengths: npt.NDArray[np.integer[Any]],
    vocab_size: int,
    *,
    path: Path,
    tokens_before: int,
    documents_before: int,
) -> None:
    """Check documents before they are appended to ``path`` after so many tokens and documents.

    Raises:
        DataError: an id outside the vocabulary, or a document longer than int32 can count.
    """
    if len(lengths) and lengths.max() > LONGEST_DOCUMENT:
        number = documents_before + int(lengths.argmax())
        raise DataError(
            f"{path}: document {number} has {lengths.max()} tokens; the format's int32 length holds at most "
            f"{LONGEST_DOCUMENT}"
        )
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        at = int(np.flatnonzero((tokens < 0) | (tokens >= vocab_size))[0])
        raise DataError(
            f"{path}: token {tokens_before + at} would be id {tokens[at]}, outside the vocabulary of {vocab_size}"
        )


class IndexedWriter:
    """Writes one token file pair; nothing appears under the final names before ``finalize``.

    Used as a context manager it finalizes at the end of the block and removes its files on an exception.

    Args:
        beside: writes the loss mask or labels of the pair.

    Raises:
        DataError: ids of so large a vocabulary do not fit into the format.
    """

    def __init__(self, prefix: str | Path, *, vocab_size: int, beside: type[MaskWriter] | None = None) -> None:
        self.prefix = strip_suffix(prefix)
        self.vocab_size = vocab_size
        self.dtype = dtype_for_vocab(vocab_size)
        self._lengths = array("i")
        self._tokens = 0
        self._partial_bin = Path(f"{self.prefix}.bin.partial")
        self._partial_idx = Path(f"{self.prefix}.idx.partial")
        self._file = open(self._partial_bin, "wb")  # noqa: SIM115 (closed by finalize or abort)
        self._beside = beside(self.prefix) if beside else None

    @property
    def documents(self) -> int:
        """Documents added so far."""
        return len(self._lengths)

    @property
    def tokens(self) -> int:
        """Tokens added so far."""
        return self._tokens

    @property
    def supervised(self) -> int | None:
        """Number of tokens so far that are in the loss; None where nothing is written ``beside``."""
        return self._beside.supervised if self._beside else None

    def add_document(self, tokens: Tokens, labels: Tokens | None = None) -> None:
        """Append one document.

        Args:
            tokens: ids, integer [tokens].
            labels: what is to be predicted in the place of each, or -100, signed integer [tokens]; None for the tokens
                themselves. For ``beside``.

        Raises:
            DataError: as ``add_documents``.
        """
        self.add_documents(tokens, np.array([len(tokens)]), labels)

    def add_documents(
        self, tokens: Tokens, lengths: npt.NDArray[np.integer[Any]], labels: Tokens | None = None
    ) -> None:
        """Append documents: their ids one after another, integer [sum of lengths], and tokens in each.

        ``labels`` are as in ``add_document``, of all ids.

        Raises:
            DataError: an id outside the vocabulary, or a document longer than int32 can count.
        """
        if len(tokens) != int(lengths.sum()):
            raise ValueError(f"{len(tokens)} tokens for documents of {int(lengths.sum())}")
        if labels is not None and (self._beside is None or len(labels) != len(tokens) or labels.dtype.kind != "i"):
            raise ValueError(f"{len(labels)} {labels.dtype} labels for {len(tokens)} tokens, beside: {self._beside}")
        check_documents(
            tokens,
            lengths,
            self.vocab_size,
            path=bin_path(self.prefix),
            tokens_before=self._tokens,
            documents_before=self.documents,
        )
        self._file.write(tokens.astype(self.dtype).tobytes())
        if self._beside is not None:
            self._beside.add(tokens if labels is None else labels)
        self._lengths.extend(lengths.tolist())
        self._tokens += len(tokens)

    def finalize(self) -> None:
        """Flush to disk and rename to the final names, the index last: a pair with an index is complete."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._beside is not None:
            self._beside.close()
        write_index(self._partial_idx, np.frombuffer(self._lengths, np.int32), self.dtype)
        # An old index or mask must never stand beside new tokens, not even for a moment.
        idx_path(self.prefix).unlink(missing_ok=True)
        remove_mask(self.prefix)
        os.replace(self._partial_bin, bin_path(self.prefix))
        if self._beside is not None:
            self._beside.publish()
        os.replace(self._partial_idx, idx_path(self.prefix))

    def abort(self) -> None:
        """Remove what was written so far."""
        # What is still in its buffer may find no place on a full disk.
        with suppress(OSError):
            self._file.close()
        self._partial_bin.unlink(missing_ok=True)
        self._partial_idx.unlink(missing_ok=True)
        if self._beside is not None:
            self._beside.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.finalize()
        except BaseException:
            self.abort()
            raise
