"""Keys of near duplicates, document after document."""

import numpy as np

from meshwright.data.deduplicate.minhash import BATCH_SHINGLES, MinHasher
from meshwright.data.deduplicate.rows import UInt64s
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.deduplicate.shingles import Shingler

BATCH_DOCUMENTS = 1 << 12


class NearKeys:
    """Collects the keys of documents; n-grams wait until there are enough for the arithmetic to be fast."""

    def __init__(self, settings: Deduplication) -> None:
        """Load the rules of words.

        Raises:
            DataError: a package that it needs is not installed.
        """
        self._shingler, self._hasher = Shingler(settings.ngram), MinHasher(settings)
        self._waiting: list[UInt64s] = []
        self._shingles = 0
        self._keys: list[UInt64s] = []

    def add(self, text: str) -> None:
        """Take in a document."""
        self._waiting.append(self._shingler(text))
        self._shingles += len(self._waiting[-1])
        # Documents of too few words have none and take memory, too.
        if self._shingles >= BATCH_SHINGLES or len(self._waiting) >= BATCH_DOCUMENTS:
            self._hash()

    def take(self) -> UInt64s:
        """Keys of all documents since the last call: uint64 [bands, documents]."""
        self._hash()
        keys, self._keys = np.concatenate(self._keys, axis=1), []
        return keys

    def _hash(self) -> None:
        self._keys.append(self._hasher(self._waiting))
        self._waiting, self._shingles = [], 0
