"""The file of keys of a shard or of a corpus: rows of unsigned 64-bit numbers, one column per document."""

from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.errors import DataError

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CHARACTERS = 0
EXACT = 1
EXACT_ROWS = 2
NO_KEY = 0


def row_count(settings: Deduplication) -> int:
    """Rows of a file: characters, two of the hash of the text where ``exact``, then a key per band where ``near``."""
    return first_band(settings) + (settings.bands if settings.near else 0)


def first_band(settings: Deduplication) -> int:
    """Row of the key of the first band."""
    return EXACT + (EXACT_ROWS if settings.exact else 0)


def open_rows(path: Path) -> UInt64s:
    """The rows of a file, mapped into memory: uint64 [rows, documents].

    Raises:
        DataError: it is missing, damaged, or something else.
    """
    try:
        # An array without elements cannot be mapped.
        rows = np.load(path) if _is_empty(path) else np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as signatures: {error}") from error
    if rows.ndim != 2 or rows.dtype != np.uint64:
        raise DataError(f"{path}: has {rows.dtype} {rows.shape} where signatures are uint64 [rows, documents]")
    return cast("UInt64s", rows)


def document_count(path: Path) -> int:
    """Documents in a file of keys.

    Raises:
        DataError: as ``open_rows``.
    """
    return open_rows(path).shape[1]


def _is_empty(path: Path) -> bool:
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        return 0 in np.lib.format.read_array_header_1_0(file)[0]
