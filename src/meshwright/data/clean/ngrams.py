"""Repeated n-grams of a list of words, exactly, n after n."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Repeated:
    """The n-grams that occur more than once.

    Attributes:
        at: positions of all their occurrences, ascending, int64 [occurrences].
        code: equal for equal n-grams, int64 [occurrences].
        places: codes by position, -1 where the n-gram there is unique, int64 [words - n + 1].
    """

    at: Int64s
    code: Int64s
    places: Int64s


class NGrams:
    """n-grams of words, and how many characters are in those that repeat.

    An (n+1)-gram repeats only where the n-grams at its start and one word on both do, so each n looks only at what is
    left of the n before. Codes are ranks, not hashes: nothing collides.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._count = len(words)
        numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
        self._ids: Int64s = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        self._ends: Int64s = np.concatenate([[0], np.cumsum(lengths)])
        counts = np.bincount(self._ids, minlength=1)
        places = np.where(counts[self._ids] > 1, self._ids, -1)
        at = np.flatnonzero(places >= 0)
        self._by_n = [_Repeated(at, places[at], places)]

    def top_characters(self, n: int) -> int:
        """Characters in all occurrences of the most frequent n-gram, words joined by one space.

        Of several as frequent the first counts; 0 where there are fewer than n words.
        """
        if self._count < n:
            return 0
        repeated = self._repeated(n)
        if not len(repeated.at):
            return self._characters(0, n) + n - 1
        counts = np.bincount(repeated.code)
        top = counts[repeated.code] == counts.max()
        return int(counts.max()) * (self._characters(int(repeated.at[np.argmax(top)]), n) + n - 1)

    def duplicate_characters(self, n: int) -> int:
        """Characters, without spaces, in n-grams that occurred before; the search goes on after each of them."""
        repeated = self._repeated(n)
        seen: set[int] = set()
        characters = after = 0
        for at, code in zip(repeated.at.tolist(), repeated.code.tolist(), strict=True):
            if at < after:
                continue
            if code in seen:
                characters += self._characters(at, n)
                after = at + n
            else:
                seen.add(code)
        return characters

    def _characters(self, at: int, n: int) -> int:
        return int(self._ends[at + n] - self._ends[at])

    def _repeated(self, n: int) -> _Repeated:
        while len(self._by_n) < n:
            if not len(self._by_n[-1].at):
                # No n-gram repeats, so no longer one does.
                return self._by_n[-1]
            self._by_n.append(self._longer(self._by_n[-1], len(self._by_n)))
        return self._by_n[n - 1]

    def _longer(self, before: _Repeated, n: int) -> _Repeated:
        """From the repeated n-grams to the repeated (n+1)-grams."""
        places = np.full(max(len(before.places) - 1, 0), -1, np.int64)
        start = (before.at < len(places)) & (before.places[np.minimum(before.at + 1, len(places))] >= 0)
        at = before.at[start]
        pairs = before.code[start] * self._count + self._ids[at + n]
        _, code, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        again = counts[code] > 1
        at, code = at[again], code[again]
        places[at] = code
        return _Repeated(at, code, places)
