"""The global order of samples: a permutation that costs no memory and depends on nothing but seed and epoch.

A Feistel network permutes the smallest power of two that holds ``num_samples``; values that fall outside are
sent through again until they fall inside (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", CT-RSA 2002), which is again a permutation. The arithmetic is 64-bit integers only, so the order is
the same on every machine and with every numpy.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

ROUNDS = 12
GOLDEN = 0x9E3779B97F4A7C15
ROUND_KEYS = [np.uint64((number + 1) * GOLDEN % 2**64) for number in range(ROUNDS)]
SHIFTS = [np.uint64(bits) for bits in (30, 27, 31)]
FACTORS = [np.uint64(factor) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)]


class SampleOrder(Protocol):
    """Which sample stands at each position of an endless stream."""

    @property
    def num_samples(self) -> int:
        """Samples of the data set that this order is for."""
        ...

    def samples(self, positions: Int64s) -> Int64s:
        """Sample numbers at stream positions, both int64 [n]; -1 is a filler without supervised tokens."""
        ...


@dataclass(frozen=True)
class GlobalOrder:
    """Epoch after epoch over all samples, each epoch its own permutation.

    Position ``p`` is place ``p % num_samples`` of epoch ``p // num_samples``.
    """

    num_samples: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, not {self.num_samples}")

    def samples(self, positions: Int64s) -> Int64s:
        """Sample numbers at stream positions (>= 0), both int64 [n]."""
        epochs, places = np.divmod(np.asarray(positions, np.int64), self.num_samples)
        return self._permute(places, epochs)

    def _permute(self, places: Int64s, epochs: Int64s) -> Int64s:
        bits = max(2, (self.num_samples - 1).bit_length())
        keys = _mix(_mix(_one(self.seed + GOLDEN)) ^ _mix(epochs.astype(np.uint64)))
        values = _feistel(places.astype(np.uint64), keys, bits)
        outside = np.flatnonzero(values >= self.num_samples)
        while len(outside):
            values[outside] = _feistel(values[outside], keys[outside], bits)
            outside = outside[values[outside] >= self.num_samples]
        return values.astype(np.int64)


def derived_seed(seed: int, number: int) -> int:
    """A seed of its own for each of several orders that share a seed; ``number`` is at least 0."""
    return int(_mix(_one(seed + GOLDEN) ^ _mix(_one(number + 1)))[0])


@dataclass(frozen=True)
class OneEpochInOrder:
    """Every sample once, in order, then fillers: the order of an evaluation."""

    num_samples: int

    def samples(self, positions: Int64s) -> Int64s:
        """Sample numbers at stream positions, both int64 [n]; -1 past the end."""
        return np.where(positions < self.num_samples, positions, -1)


def _one(number: int) -> UInt64s:
    return np.array([number % 2**64], np.uint64)


def _feistel(values: UInt64s, keys: UInt64s, bits: int) -> UInt64s:
    """A keyed permutation of [0, 2**bits): the halves are mixed into each other in turn."""
    low_bits = np.uint64(bits // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(bits - bits // 2)) - np.uint64(1)
    low, high = values & low_mask, values >> low_bits
    for number in range(ROUNDS):
        round_keys = keys + ROUND_KEYS[number]
        if number % 2:
            low ^= _mix(high ^ round_keys) & low_mask
        else:
            high ^= _mix(low ^ round_keys) & high_mask
    return (high << low_bits) | low


def _mix(x: UInt64s) -> UInt64s:
    """The splitmix64 finalizer (Steele, Lea and Flood, OOPSLA 2014), in an array of at least one dimension."""
    # Arrays wrap modulo 2**64; numbers of numpy would do so too, but warn.
    x = x ^ (x >> SHIFTS[0])
    x *= FACTORS[0]
    x ^= x >> SHIFTS[1]
    x *= FACTORS[1]
    x ^= x >> SHIFTS[2]
    return x
