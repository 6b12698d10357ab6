"""Signing as a stage of preparation: the keys of the documents of each shard."""

import hashlib
from array import array
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.corpus import Tally
from meshwright.data.deduplicate.rows import CHARACTERS, EXACT, EXACT_ROWS, UInt64s, first_band, row_count
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.preparation.documents import Reader
from meshwright.data.preparation.shards import Shard, complete_file, shard_path

KEYS = ".npy"
HASH_BYTES = 16


def keys_path(directory: Path, shard: Shard) -> Path:
    """Where the keys of a shard are."""
    return shard_path(directory, shard, KEYS)


class Signer:
    """Signs one shard: NUMBER.npy in ``directory`` gets the rows of its documents, uint64 [rows, documents].

    See ``rows.row_count`` for the rows. A document takes 8 bytes, 16 more where ``exact`` and 8 more for each band
    where ``near``. Exact comparing needs neither spaCy nor xxhash.
    """

    def __init__(self, settings: Deduplication, reader: Reader, directory: Path) -> None:
        self._arguments = (settings, reader, directory)

    def __reduce__(self) -> tuple[Any, ...]:
        return Signer, self._arguments

    @cached_property
    def _near(self) -> Any:
        from meshwright.data.deduplicate.near import NearKeys

        return NearKeys(self._arguments[0])

    def __call__(self, shard: Shard) -> None:
        """Sign a shard.

        Raises:
            DataError: an input cannot be read, or spaCy or xxhash is not installed.
            OSError: the result cannot be written.
        """
        _, reader, directory = self._arguments
        rows = self.rows(source.text for source in reader(shard, Tally()))
        with complete_file(keys_path(directory, shard)) as file:
            np.save(file, rows)

    def rows(self, texts: Iterable[str]) -> UInt64s:
        """Rows of documents: uint64 [rows, documents]."""
        settings = self._arguments[0]
        # Numbers and bytes as Python objects would take several times as much.
        characters, digests = array("Q"), bytearray()
        for text in texts:
            characters.append(len(text))
            if settings.exact:
                digests += hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()
            if settings.near:
                self._near.add(text)
        rows = np.empty((row_count(settings), len(characters)), np.uint64)
        rows[CHARACTERS] = characters
        if settings.exact:
            rows[EXACT : EXACT + EXACT_ROWS] = np.frombuffer(digests, "<u8").reshape(-1, EXACT_ROWS).T
        if settings.near:
            rows[first_band(settings) :] = self._near.take()
        return rows
