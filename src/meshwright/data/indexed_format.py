"""Token files in Megatron's ``.bin/.idx`` format, version 1.

Byte layout as written by megatron-core's ``IndexedDatasetBuilder``
(github.com/NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py), all little-endian:

* ``.bin``: the token ids of all sequences, one after another, nothing else.
* ``.idx``: 9 bytes magic, uint64 version (1), uint8 dtype code, uint64 number of sequences, uint64 number of
  document borders, then int32 tokens per sequence, int64 byte offset of each sequence in ``.bin``, int64
  document borders (sequence numbers, from 0 to the number of sequences).

Here every document is one sequence, so there is one border more than there are sequences.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.errors import DataError

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
NARROW, WIDE = np.dtype("<u2"), np.dtype("<i4")
LARGEST_VOCABULARY = 2**31
Tokens = npt.NDArray[np.integer[Any]]


def dtype_for_vocab(vocab_size: int) -> np.dtype:
    """uint16 below 65500 ids, else int32: megatron-core's rule. Raises DataError where int32 cannot hold all ids."""
    if vocab_size > LARGEST_VOCABULARY:
        raise DataError(f"a vocabulary of {vocab_size} ids: token files hold ids below {LARGEST_VOCABULARY}")
    return NARROW if vocab_size < 65500 else WIDE


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
