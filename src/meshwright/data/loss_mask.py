"""PREFIX.mask, beside a pair of token files: which of its tokens are supervised.

Byte layout, all little-endian: 8 bytes magic, uint64 version (1), uint64 tokens, uint64 how many of them are
supervised, then one bit for each token, eight to a byte, the first in the lowest bit; bits after the last token are 0.
"""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.errors import DataError

MAGIC = b"MWMASK\x00\x00"
HEADER = struct.Struct("<8sQQQ")

Bools = npt.NDArray[np.bool_]


def mask_path(prefix: Path) -> Path:
    """The loss mask of a prefix."""
    return Path(f"{prefix}.mask")


class MaskWriter:
    """Writes the mask of one pair beside the writer of its tokens, which says when it gets its name."""

    def __init__(self, prefix: Path) -> None:
        self._path = mask_path(prefix)
        self._partial = Path(f"{self._path}.partial")
        self._tokens = self._supervised = 0
        self._rest: Bools = np.empty(0, np.bool_)
        self._file = open(self._partial, "wb")  # noqa: SIM115 (closed by close or abort)
        self._file.write(bytes(HEADER.size))

    def add(self, supervised: Bools) -> None:
        """Append whether each of the next tokens is supervised, bool [tokens]."""
        self._tokens += len(supervised)
        self._supervised += int(np.count_nonzero(supervised))
        waiting = np.concatenate((self._rest, supervised))
        whole = len(waiting) // 8 * 8
        self._file.write(np.packbits(waiting[:whole], bitorder="little").tobytes())
        self._rest = waiting[whole:]

    def close(self) -> None:
        """Flush everything to disk, still under another name."""
        self._file.write(np.packbits(self._rest, bitorder="little").tobytes())
        self._file.seek(0)
        self._file.write(HEADER.pack(MAGIC, 1, self._tokens, self._supervised))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def publish(self) -> None:
        """Give a closed mask its name."""
        os.replace(self._partial, self._path)

    def abort(self) -> None:
        """Remove what was written so far."""
        self._file.close()
        self._partial.unlink(missing_ok=True)


class LossMask:
    """A mask, memory mapped: opening costs the same for any size.

    Attributes:
        supervised: how many tokens are, as the header says.
    """

    def __init__(self, prefix: Path, tokens: int) -> None:
        """Open and check the mask of a pair that has ``tokens`` tokens.

        Raises:
            DataError: it is not a mask, truncated, or that of other tokens.
        """
        self.path = path = mask_path(prefix)
        self._opened = (prefix, tokens)
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(HEADER.size)
        if head[: len(MAGIC)] != MAGIC:
            raise DataError(f"{path}: byte 0: expected {MAGIC!r}, found {head[: len(MAGIC)]!r}: not a loss mask")
        if len(head) < HEADER.size:
            raise DataError(f"{path}: truncated at byte {size}: the header has {HEADER.size} bytes")
        _, version, masked, self.supervised = HEADER.unpack(head)
        if version != 1:
            raise DataError(f"{path}: byte 8: version {version}, only version 1 is known")
        if masked != tokens:
            raise DataError(f"{path}: is for {masked} tokens, but {prefix}.bin has {tokens}: the mask of other data")
        if size != (needed := HEADER.size + -(-tokens // 8)):
            problem = "truncated" if size < needed else "longer than its header says"
            raise DataError(f"{path}: {problem}: {size} bytes, but {tokens} tokens need {needed}")
        # A plain array over the mapping: slices of a memmap are slow to make.
        self._bits = np.asarray(np.memmap(path, np.uint8, "r"))[HEADER.size :]

    def __reduce__(self) -> tuple[Any, ...]:
        return LossMask, self._opened

    def read(self, start: int, count: int) -> Bools:
        """Whether each of ``count`` tokens from ``start`` on is supervised, bool [count]."""
        packed = self._bits[start >> 3 : (start + count + 7) >> 3]
        return np.unpackbits(packed, bitorder="little")[start & 7 : (start & 7) + count].view(np.bool_)


def open_mask(prefix: Path, tokens: int) -> LossMask | None:
    """The mask of a pair of ``tokens`` tokens, or None where there is none: then all are supervised.

    Raises:
        DataError: as `LossMask`.
    """
    return LossMask(prefix, tokens) if mask_path(prefix).is_file() else None
