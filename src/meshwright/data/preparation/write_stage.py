"""Writing as a stage of preparation: the ids of all shards into one token file for each split, then their index.

Each shard has its place in the token files from the start, so processes write side by side, and a run that was killed
goes on with the shards that are not written. The ids of a shard are removed once they are on disk in their place.
"""

import errno
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from meshwright.data.indexed_format import bin_path, idx_path
from meshwright.data.indexed_writer import write_index_in_parts
from meshwright.data.preparation.shards import Shard, complete_file, shard_path
from meshwright.data.preparation.tokenize_stage import SPLITS, TokenCounts, lengths_path, tokens_path

WRITTEN = ".written"
COPY_BYTES = 1 << 26
# What a kernel or file system says that cannot copy by itself.
NO_COPY = (errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True)
class ShardWriter:
    """Copies the ids of one shard to their place in the token files.

    Attributes:
        tokens: directory of the tokenized shards.
        prefix: of the token files, in the directory of this stage.
        starts: for each shard by number and each split, the byte where its ids begin.
    """

    tokens: Path
    prefix: Path
    starts: Sequence[Sequence[int]]

    def __call__(self, shard: Shard) -> None:
        """Copy the ids of a shard, mark it as written, remove them.

        Raises:
            OSError: the token file cannot be written.
        """
        for split, start in zip(SPLITS, self.starts[shard.number], strict=True):
            _copy(tokens_path(self.tokens, shard, split), bin_path(Path(f"{self.prefix}{split}")), start)
        with complete_file(shard_path(self.prefix.parent, shard, WRITTEN)):
            pass
        for split in SPLITS:
            tokens_path(self.tokens, shard, split).unlink()


def shard_starts(counts: Sequence[TokenCounts], dtype: np.dtype) -> list[tuple[int, int]]:
    """For each shard and split, the byte of the token file where its ids begin."""
    starts = [(0, 0)]
    for shard in counts:
        train, held_out = (split.tokens * dtype.itemsize for split in shard.splits)
        starts.append((starts[-1][0] + train, starts[-1][1] + held_out))
    return starts[:-1]


def _copy(source: Path, target: Path, start: int) -> None:
    """Put the bytes of a file, if any, into another, from byte ``start`` on, and on disk."""
    try:
        with open(source, "rb") as file:
            if not (size := os.fstat(file.fileno()).st_size):
                return
            # Not truncated: other shards may be there already.
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                _copy_bytes(file.fileno(), descriptor, size, start)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(target)) from error


def _copy_bytes(source: int, target: int, size: int, start: int) -> None:
    done, in_kernel = 0, True
    while done < size:
        count = min(size - done, COPY_BYTES)
        try:
            if in_kernel:
                copied = os.copy_file_range(source, target, count, done, start + done)
                # Some file systems say so where they cannot.
                in_kernel = copied > 0
            else:
                copied = os.pwrite(target, os.pread(source, count, done), start + done)
                if not copied:
                    raise OSError(errno.EIO, "the ids of a shard end early")
            done += copied
        except OSError as error:
            if not in_kernel or error.errno not in NO_COPY:
                raise
            in_kernel = False


def write_indexes(tokens: Path, prefix: Path, shards: Sequence[Shard], counts: TokenCounts, dtype: np.dtype) -> None:
    """Write the index of each split that has documents, from the lengths of all shards; memory is that of one shard."""
    for split, size in zip(SPLITS, counts.splits, strict=True):
        if size.documents:
            read = functools.partial(_lengths, tokens, shards, split)
            write_index_in_parts(idx_path(Path(f"{prefix}{split}")), read, size.documents, dtype)


def _lengths(tokens: Path, shards: Sequence[Shard], split: str) -> Iterator[npt.NDArray[np.int32]]:
    for shard in shards:
        yield np.fromfile(lengths_path(tokens, shard, split), "<i4")
