"""Several corpora read as one stream, each with its share of the samples.

Draw ``k`` (from 0) of a source with share ``w`` is due at time ``(k + u) / w``, where ``u`` is another place in (0, 1)
for each source. The stream takes draws as they fall due: in whole units of time, within one unit in the order of the
sources. So every source comes at even distances, and how many of its draws are due by a time is one multiplication:
any position of the stream is found from its number alone, without a table. Shares are integers over ``UNITS``, so the
arithmetic is exact; after ``UNITS`` positions the pattern starts again.

Shapes: N positions, R sources.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.order import GlobalOrder, Int64s, derived_seed

UNIT_BITS = 31
UNITS = 1 << UNIT_BITS


@dataclass(frozen=True)
class Blend:
    """Which source each position of an endless stream is drawn from.

    In every prefix of the stream each source is within ``R / 2 + 2`` samples of its share.

    Attributes:
        shares: of each source, in units of 1 / ``UNITS``; they add up to ``UNITS``.
    """

    shares: tuple[int, ...]

    def draws(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Source of each position (>= 0), and how often that source was drawn from before; int64 [N] both."""
        before, due, turn, periods = self._locate(positions)
        sources = (due.cumsum(axis=1) > turn[:, None]).argmax(axis=1)
        rows = np.arange(len(sources))
        return sources, before[rows, sources] + periods * np.array(self.shares)[sources]

    def drawn(self, positions: int) -> Int64s:
        """How often each source is drawn from in the first ``positions`` positions; int64 [R]."""
        before, due, turn, periods = self._locate(np.array([positions]))
        taken = due & (due.cumsum(axis=1) <= turn[:, None])
        return np.asarray((before + taken + periods[:, None] * np.array(self.shares))[0])

    def _locate(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """The unit of time in which each position falls.

        Returns:
            Draws due before it, int64 [N, R]; draws that fall due in it, 0 or 1, int64 [N, R]; how many of those
            come before the position, int64 [N]; whole periods before it, int64 [N].
        """
        periods, places = np.divmod(np.asarray(positions, np.int64), UNITS)
        # By any time, rounding moves all sources together by half a draw for each at most.
        reach = len(self.shares) // 2 + 1
        start, end = np.maximum(places - reach, 0), np.minimum(places + reach + 1, UNITS)
        while (end - start).max(initial=0) > 1:
            middle = (start + end) // 2
            beyond = self._due(middle).sum(axis=1) > places
            start, end = np.where(beyond, start, middle), np.where(beyond, middle, end)
        before = self._due(start)
        return before, self._due(end) - before, places - before.sum(axis=1), periods

    def _due(self, times: Int64s) -> Int64s:
        """Draws of each source due by a time within the period, int64 [N, R]."""
        number = len(self.shares)
        rest_of_first = UNITS * (2 * np.arange(number, 0, -1) - 1) // (2 * number)
        return (times[:, None] * np.array(self.shares, np.int64) + rest_of_first) >> UNIT_BITS


def blend(weights: Sequence[float]) -> Blend:
    """The blend with shares in proportion to ``weights``, exact to 1 / ``UNITS``.

    Raises:
        DataError: a weight is too small beside the others.
    """
    total = sum(map(Fraction, weights))
    exact = [Fraction(weight) * UNITS / total for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(shares)), key=lambda source: shares[source] - exact[source])
    for source in by_remainder[: UNITS - sum(shares)]:
        shares[source] += 1
    if 0 in shares:
        raise DataError(f"dataset.paths: weight {weights[shares.index(0)]} is less than 1 in {UNITS} of the blend")
    return Blend(tuple(shares))


@dataclass(frozen=True)
class BlendedOrder:
    """The order of a blend: every source in epochs of its own, each epoch its own permutation."""

    blend: Blend
    sizes: tuple[int, ...]
    seed: int

    @property
    def num_samples(self) -> int:
        """Samples of all sources together."""
        return sum(self.sizes)

    @cached_property
    def _sources(self) -> list[tuple[int, GlobalOrder]]:
        starts = np.cumsum((0, *self.sizes)).tolist()
        return [
            (starts[source], GlobalOrder(size, derived_seed(self.seed, source)))
            for source, size in enumerate(self.sizes)
        ]

    def samples(self, positions: Int64s) -> Int64s:
        """Sample numbers at stream positions (>= 0), both int64 [N]."""
        sources, draws = self.blend.draws(positions)
        samples = np.empty_like(draws)
        for source in np.unique(sources).tolist():
            start, order = self._sources[source]
            here = np.flatnonzero(sources == source)
            samples[here] = start + order.samples(draws[here])
        return samples


class BlendedDataset:
    """Samples of several corpora under one numbering: those of the first, then those of the second, and so on."""

    def __init__(self, sources: Sequence[TokenDataset], weights: Sequence[float]) -> None:
        """Join corpora of one ``seq_length``, each of one token file pair; ``weights`` are relative to each other.

        Raises:
            DataError: a weight is too small beside the others, or a corpus comes twice.
        """
        prefixes = [source.files[0].prefix for source in sources]
        for prefix in prefixes:
            if prefixes.count(prefix) > 1:
                raise DataError(f"dataset.paths: {prefix} comes twice in the blend: name it once, with both weights")
        self.sources = list(sources)
        self.blend = blend(weights)
        self._starts = np.cumsum([0] + [source.num_samples for source in sources], dtype=np.int64)
        self.num_samples = int(self._starts[-1])

    @property
    def names(self) -> list[str]:
        """What to call each source: the last part of its path, or all of it where two have the same."""
        prefixes = [source.files[0].prefix for source in self.sources]
        short = [prefix.name for prefix in prefixes]
        return short if len(set(short)) == len(short) else [str(prefix) for prefix in prefixes]

    def order(self, seed: int) -> BlendedOrder:
        """The order in which a run reads the samples."""
        return BlendedOrder(self.blend, tuple(source.num_samples for source in self.sources), seed)

    def batch(self, samples: Int64s) -> tuple[Int64s, ...]:
        """Tokens, labels and perhaps positions, int64 [N, S] each, as `TokenDataset.batch` gives them.

        Raises:
            DataError: an id outside the vocabulary, with file and position.
        """
        arrays = self.sources[0].empty(len(samples))
        owners = np.maximum(np.searchsorted(self._starts, samples, side="right") - 1, 0)
        for owner in np.unique(owners).tolist():
            here = np.flatnonzero(owners == owner)
            self.sources[owner].read(samples[here] - self._starts[owner], arrays, here.tolist())
        return arrays

    def fingerprint(self) -> str:
        """sha256 hex of the identity of the data and of its shares."""
        digest = hashlib.sha256()
        for source, share in zip(self.sources, self.blend.shares, strict=True):
            digest.update(f"{source.fingerprint()} {share}\n".encode())
        return digest.hexdigest()

    def describe(self, samples: int) -> list[str]:
        """A line for each source: what a run of ``samples`` samples reads of it, for the log."""
        return [
            f"blend: {source.files[0].prefix}: {share / UNITS:.2%}, "
            f"{drawn:,} samples of {source.num_samples:,}, {drawn / source.num_samples:.2f} epochs{source.note()}"
            for source, share, drawn in zip(
                self.sources, self.blend.shares, self.blend.drawn(samples).tolist(), strict=True
            )
        ]
