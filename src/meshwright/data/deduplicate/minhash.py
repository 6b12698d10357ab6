"""MinHash: from hashes of n-grams to one key per band, equal for documents that are probably alike.

A hash function of the family is h(x) = (a x + b mod 2^64) mod 2^61, its value for a document the least over all n-grams
(Broder 1997). The reference reduces modulo 2^61 - 1 instead, which adds the top three bits to the lower 61: the least
value comes from the same n-gram, unless two are less than 8 apart of 2^61. As a and b can be shifted beforehand, one
multiplication and one addition are left.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.data.deduplicate.rows import NO_KEY, Int64s, UInt64s
from meshwright.data.deduplicate.settings import Deduplication

# Seed and generator of the reference: the same a and b.
SEED = 1
RANGE = (1 << 61) - 1
SHIFT = np.uint64(3)
# Products of one hash function stay in the cache of a core.
BATCH_SHINGLES = 1 << 14
# Odd constants of SplitMix64 (Steele, Lea, Flood 2014).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class MinHasher:
    """Makes the keys of documents; ``settings`` gives bands and rows."""

    def __init__(self, settings: Deduplication) -> None:
        self._bands, self._rows = settings.bands, settings.rows
        generator = np.random.RandomState(SEED)
        size = (1, settings.bands * settings.rows)
        a = generator.randint(1, RANGE, dtype=np.uint64, size=size)[0] << SHIFT
        b = generator.randint(0, RANGE, dtype=np.uint64, size=size)[0] << SHIFT
        self._functions = list(zip(a, b, strict=True))

    def __call__(self, documents: Sequence[UInt64s]) -> UInt64s:
        """Keys of documents given by the hashes of their n-grams: uint64 [bands, documents].

        A document without n-grams has ``NO_KEY`` in all bands, no other one has it in any. Different values of a band
        get the same key with a chance of 2^-64.
        """
        keys = np.full((self._bands, len(documents)), NO_KEY, np.uint64)
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        filled = np.flatnonzero(lengths)
        if len(filled):
            starts = np.cumsum(lengths[filled]) - lengths[filled]
            keys[:, filled] = self._keys(np.concatenate(documents), starts)
        return keys

    def _keys(self, shingles: UInt64s, starts: Int64s) -> UInt64s:
        values = np.empty_like(shingles)
        keys = np.zeros((self._bands, len(starts)), np.uint64)
        for number, (a, b) in enumerate(self._functions):
            np.multiply(shingles, a, out=values)
            np.add(values, b, out=values)
            band = number // self._rows
            keys[band] = _mix(keys[band] ^ np.minimum.reduceat(values, starts))
        return np.maximum(keys, np.uint64(NO_KEY + 1))


def _mix(values: UInt64s) -> UInt64s:
    """SplitMix64's step and finalizer: each bit of the result depends on all of the argument."""
    values = values + GOLDEN
    values = (values ^ (values >> np.uint64(30))) * MIX_1
    values = (values ^ (values >> np.uint64(27))) * MIX_2
    return values ^ (values >> np.uint64(31))
