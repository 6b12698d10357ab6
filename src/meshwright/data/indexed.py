"""Read token files (`indexed_format`), mapped from the disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.errors import DataError
from meshwright.data.file_state import FileState, check_unchanged, told_if_unreadable
from meshwright.data.indexed_format import DTYPE_OF_CODE, HEADER, MAGIC, Tokens, bin_path, idx_path, strip_suffix


class IndexedDataset:
    """A token file pair, memory mapped: opening costs the same for any size.

    Attributes:
        dtype: dtype of the stored ids.
        lengths: int32 [sequences], tokens of each.
        pointers: int64 [sequences], byte offset of each in ``.bin``.
        borders: int64 [documents + 1], first sequence of each document, then the number of sequences.
        tokens: all ids of the file in order, ``dtype`` [total tokens], read from disk as they are touched.
        states: of both files as they were opened.
    """

    def __init__(
        self, prefix: str | Path, *, dtype: npt.DTypeLike | None = None, vocab_size: int | None = None
    ) -> None:
        """Open and check the pair.

        Args:
            dtype: refuse a file that stores ids in another dtype.
            vocab_size: refuse a file whose dtype says it was written for a larger or smaller vocabulary.

        Raises:
            DataError: a file is missing, truncated, not in this format, of the wrong dtype, or cannot be read.
        """
        self.prefix = strip_suffix(prefix)
        self.bin_path, self.idx_path = bin_path(self.prefix), idx_path(self.prefix)
        self._expected = (dtype, vocab_size)
        with told_if_unreadable(self.prefix):
            for path in (self.idx_path, self.bin_path):
                if not path.is_file():
                    raise DataError(f"{path}: no such file; `meshwright data prepare` writes it")
            self.states = [FileState.of(path) for path in (self.idx_path, self.bin_path)]
            self._open_index()
            self._check_dtype(dtype, vocab_size)
            self._open_tokens()

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling a memmap would copy the whole corpus; another process opens the files again.
        return _reopen, (self.prefix, *self._expected, self.states)

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


def _reopen(
    prefix: Path, dtype: npt.DTypeLike | None, vocab_size: int | None, states: Sequence[FileState]
) -> IndexedDataset:
    data = IndexedDataset(prefix, dtype=dtype, vocab_size=vocab_size)
    check_unchanged(states)
    return data
