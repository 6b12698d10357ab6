"""PREFIX.mask, beside a pair of token files: which of its tokens are supervised.

Byte layout, all little-endian: 8 bytes magic, uint64 version (1), uint64 tokens, uint64 how many of them are
supervised, then one bit for each token, eight to a byte, the first in the lowest bit; bits after the last token are 0.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.errors import DataError
from meshwright.data.file_state import FileState, check_unchanged, told_if_unreadable

IGNORED = -100
"""The label of a token that is not supervised."""
SUFFIX, MAGIC = ".mask", b"MWMASK\x00\x00"
HEADER = struct.Struct("<8sQQQ")

Bools = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.integer[Any]]


class MaskWriter:
    """Writes the mask of one pair beside the writer of its tokens, which says when it gets its name.

    Attributes:
        supervised: tokens so far that are in the loss.
    """

    suffix, magic = SUFFIX, MAGIC

    def __init__(self, prefix: Path) -> None:
        self._path = Path(f"{prefix}{self.suffix}")
        self._partial = Path(f"{self._path}.partial")
        self._tokens = self.supervised = 0
        self._rest: Bools = np.empty(0, np.bool_)
        self._file = open(self._partial, "wb")  # noqa: SIM115 (closed by close or abort)
        self._file.write(bytes(HEADER.size))

    def add(self, labels: Labels) -> None:
        """Append the labels in the places of the next tokens, integer [tokens]: ids, or -100."""
        supervised = labels != IGNORED
        self._tokens += len(labels)
        self.supervised += int(np.count_nonzero(supervised))
        self._write(labels, supervised)

    def _write(self, labels: Labels, supervised: Bools) -> None:
        waiting = np.concatenate((self._rest, supervised))
        whole = len(waiting) // 8 * 8
        self._file.write(np.packbits(waiting[:whole], bitorder="little").tobytes())
        self._rest = waiting[whole:]

    def close(self) -> None:
        """Flush everything to disk, still under another name."""
        self._file.write(np.packbits(self._rest, bitorder="little").tobytes())
        self._file.seek(0)
        self._file.write(HEADER.pack(self.magic, 1, self._tokens, self.supervised))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def publish(self) -> None:
        """Give a closed file its name."""
        os.replace(self._partial, self._path)

    def abort(self) -> None:
        """Remove what was written so far."""
        with suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)


class LossMask:
    """A mask, memory mapped: opening costs the same for any size.

    Attributes:
        path: of the file.
        supervised: how many tokens are, as the header says.
        state: of the file as it was opened.
    """

    suffix, magic, content = SUFFIX, MAGIC, "loss mask"

    def __init__(self, prefix: Path, tokens: int) -> None:
        """Open and check the file of a pair that has ``tokens`` tokens.

        Raises:
            DataError: it cannot be read, is another file, truncated, or that of other tokens.
        """
        self.path = Path(f"{prefix}{self.suffix}")
        self._opened = (prefix, tokens)
        with told_if_unreadable(self.path):
            self._open(prefix, tokens)

    def _open(self, prefix: Path, tokens: int) -> None:
        path = self.path
        self.state = FileState.of(path)
        size = self.state.size
        with open(path, "rb") as file:
            head = file.read(HEADER.size)
        if head[:8] != self.magic:
            raise DataError(f"{path}: byte 0: expected {self.magic!r}, found {head[:8]!r}: not a {self.content}")
        if len(head) < HEADER.size:
            raise DataError(f"{path}: truncated at byte {size}: the header has {HEADER.size} bytes")
        _, version, told, self.supervised = HEADER.unpack(head)
        if version != 1:
            raise DataError(f"{path}: byte 8: version {version}, only version 1 is known")
        if told != tokens:
            raise DataError(f"{path}: is for {told} tokens, but {prefix}.bin has {tokens}: that of other data")
        if size != (needed := HEADER.size + self.bytes_for(tokens)):
            problem = "truncated" if size < needed else "longer than its header says"
            raise DataError(f"{path}: {problem}: {size} bytes, but {tokens} tokens need {needed}")
        # A plain array over the mapping: slices of a memmap are slow to make.
        self._bytes = np.asarray(np.memmap(path, np.uint8, "r"))[HEADER.size :]

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self._opened, self.state)

    @staticmethod
    def bytes_for(tokens: int) -> int:
        """Size of the file without its header."""
        return -(-tokens // 8)

    def read(self, start: int, count: int) -> Bools:
        """Whether each of ``count`` tokens from ``start`` on is supervised, bool [count]."""
        packed = self._bytes[start >> 3 : (start + count + 7) >> 3]
        return np.unpackbits(packed, bitorder="little")[start & 7 : (start & 7) + count].view(np.bool_)

    def apply(self, labels: Labels, start: int, vocab_size: int | None) -> None:
        """Turn the tokens from ``start`` on, integer [n], into labels: -100 where they are not supervised."""
        np.putmask(labels, ~self.read(start, len(labels)), IGNORED)


def _reopen(kind: type[LossMask], opened: tuple[Path, int], state: FileState) -> LossMask:
    mask = kind(*opened)
    check_unchanged([state])
    return mask
