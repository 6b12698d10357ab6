"""Token files in Megatron's ``.bin/.idx`` format, version 1.

Byte layout as written by megatron-core's ``IndexedDatasetBuilder``
(github.com/NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py), all little-endian:

* ``.bin``: the token ids of all sequences, one after another, nothing else.
* ``.idx``: 9 bytes magic, uint64 version (1), uint8 dtype code, uint64 number of sequences, uint64 number of
  document borders, then int32 tokens per sequence, int64 byte offset of each sequence in ``.bin``, int64
  document borders (sequence numbers, from 0 to the number of sequences).

Here every document is one sequence, so there is one border more than there are sequences.
"""

import os
import struct
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from meshwright.data.errors import DataError
from meshwright.data.loss_mask import MaskWriter
from meshwright.data.own_labels import remove_mask

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPE_OF_CODE: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
CODE_OF_DTYPE = {dtype: code for code, dtype in DTYPE_OF_CODE.items()}
LONGEST_DOCUMENT = 2**31 - 1
BORDERS_AT_ONCE = 1 << 20

Tokens = npt.NDArray[np.integer[Any]]


def dtype_for_vocab(vocab_size: int) -> np.dtype:
    """uint16 below 65500 ids, else int32: megatron-core's rule."""
    return np.dtype("<u2") if vocab_size < 65500 else np.dtype("<i4")


def bin_path(prefix: Path) -> Path:
    """The token file of a prefix."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: Path) -> Path:
    """The index file of a prefix."""
    return Path(f"{prefix}.idx")


def strip_suffix(path: str | Path) -> Path:
    """The prefix meant by a path that may end in ``.bin`` or ``.idx``."""
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


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
        if kind is None:
            self.finalize()
        else:
            self.abort()


class IndexedDataset:
    """A token file pair, memory mapped: opening costs the same for any size.

    Attributes:
        dtype: dtype of the stored ids.
        lengths: int32 [sequences], tokens of each.
        pointers: int64 [sequences], byte offset of each in ``.bin``.
        borders: int64 [documents + 1], first sequence of each document, then the number of sequences.
        tokens: all ids of the file in order, ``dtype`` [total tokens], read from disk as they are touched.
    """

    def __init__(
        self, prefix: str | Path, *, dtype: npt.DTypeLike | None = None, vocab_size: int | None = None
    ) -> None:
        """Open and check the pair.

        Args:
            dtype: refuse a file that stores ids in another dtype.
            vocab_size: refuse a file whose dtype says it was written for a larger or smaller vocabulary.

        Raises:
            DataError: a file is missing, truncated, not in this format, or of the wrong dtype.
        """
        self.prefix = strip_suffix(prefix)
        self.bin_path, self.idx_path = bin_path(self.prefix), idx_path(self.prefix)
        self._expected = (dtype, vocab_size)
        for path in (self.idx_path, self.bin_path):
            if not path.is_file():
                raise DataError(f"{path}: no such file; `meshwright data prepare` writes it")
        self._open_index()
        self._check_dtype(dtype, vocab_size)
        self._open_tokens()

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling a memmap would copy the whole corpus; another process opens the files again.
        return _reopen, (self.prefix, *self._expected)

    def _open_index(self) -> None:
        path = self.idx_path
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(HEADER.size)
        if head[: len(MAGIC)] != MAGIC:
            raise DataError(f"{path}: byte 0: expected {MAGIC!r}, found {head[:9]!r}: not a Megatron index file")
        if len(head) < HEADER.size:
            raise DataError(f"{path}: truncated at byte {size}: the header has {HEADER.size} bytes")
        _, version, code, sequences, borders = HEADER.unpack(head)
        if version != 1:
            raise DataError(f"{path}: byte 9: version {version}, only version 1 is known")
        if code not in DTYPE_OF_CODE:
            raise DataError(f"{path}: byte 17: dtype code {code} is no integer; known: {sorted(DTYPE_OF_CODE)}")
        self.dtype = DTYPE_OF_CODE[code]
        needed = HEADER.size + 12 * sequences + 8 * borders
        if size == needed + sequences and sequences:
            raise DataError(f"{path}: a multimodal index (a mode per sequence), which is not supported")
        if size != needed:
            problem = "truncated" if size < needed else "longer than its header says"
            raise DataError(
                f"{path}: {problem}: {size} bytes, but {sequences} sequences and {borders} document borders "
                f"need {needed}"
            )
        buffer = np.memmap(path, np.uint8, "r")
        at = HEADER.size
        self.lengths: npt.NDArray[np.int32] = np.frombuffer(buffer, "<i4", sequences, at)
        self.pointers: npt.NDArray[np.int64] = np.frombuffer(buffer, "<i8", sequences, at + 4 * sequences)
        self.borders: npt.NDArray[np.int64] = np.frombuffer(buffer, "<i8", borders, at + 12 * sequences)
        if borders < 1 or self.borders[0] != 0 or self.borders[-1] != sequences:
            raise DataError(f"{path}: byte {at + 12 * sequences}: document borders do not span the sequences")

    def _check_dtype(self, dtype: npt.DTypeLike | None, vocab_size: int | None) -> None:
        if dtype is not None and np.dtype(dtype) != self.dtype:
            raise DataError(f"{self.idx_path}: byte 17: ids are {self.dtype}, not {np.dtype(dtype)}")
        if vocab_size is not None and vocab_size > np.iinfo(self.dtype).max + 1:
            raise DataError(
                f"{self.idx_path}: byte 17: ids are {self.dtype}, too narrow for a vocabulary of {vocab_size}; "
                "the corpus was written with another tokenizer"
            )

    def _open_tokens(self) -> None:
        size = self.bin_path.stat().st_size
        width = self.dtype.itemsize
        needed = int(self.pointers[-1]) + int(self.lengths[-1]) * width if len(self) else 0
        if size != needed:
            problem = "truncated" if size < needed else "longer than its index says"
            raise DataError(f"{self.bin_path}: {problem}: {size} bytes, {self.idx_path} needs {needed}")
        # A plain array over the mapping: slices of a memmap are slow to make.
        self.tokens: Tokens = np.asarray(np.memmap(self.bin_path, self.dtype, "r")) if size else np.empty(0, self.dtype)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.borders) - 1

    def sequence(self, number: int) -> Tokens:
        """Ids of one sequence, a view into the file, ``dtype`` [tokens]."""
        start = int(self.pointers[number]) // self.dtype.itemsize
        return self.tokens[start : start + int(self.lengths[number])]

    def verify(self) -> None:
        """Check every entry of the index (opening checks only sizes and ends).

        Raises:
            DataError: sequences overlap or leave gaps, or document borders run backwards.
        """
        ends = np.cumsum(self.lengths, dtype=np.int64) * self.dtype.itemsize
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if len(self) else ends
        wrong = np.flatnonzero((self.pointers != starts) | (self.lengths < 0))
        if len(wrong):
            raise DataError(
                f"{self.idx_path}: sequence {wrong[0]}: starts at byte {self.pointers[wrong[0]]} of the token "
                f"file, expected {starts[wrong[0]]}"
            )
        backwards = np.flatnonzero(np.diff(self.borders) < 0)
        if len(backwards):
            raise DataError(f"{self.idx_path}: document {backwards[0]}: ends before it starts")


def _reopen(prefix: Path, dtype: npt.DTypeLike | None, vocab_size: int | None) -> IndexedDataset:
    return IndexedDataset(prefix, dtype=dtype, vocab_size=vocab_size)
