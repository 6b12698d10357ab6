"""Hashes of the n-grams of words of a text, after case, marks, digits and accents are made one.

The definitions are those of datatrove's MinHash (release 0.10.1), so that the same documents are found; marks are those
of CCNet (arXiv:1911.00359).
"""

import itertools
import re
import string
import unicodedata

import numpy as np

from meshwright.data.clean.words import WordSplitter
from meshwright.data.deduplicate.rows import UInt64s
from meshwright.data.errors import DataError

NUMBER = re.compile("\\d+(?:[.,\u060c\u066b\u2396\u2397\u2398]\\d+)?")
OTHER_MARKS = (
    "\u00ab\u00b4\u00bb\u2013\u2014\u2019\u201c\u201d\u201e\u2026\u2236\u2501\u25ba\u3001\u3002\u3008\u3009\u300a\u300b"
    "\u300c\u300d\u3010\u3011\uff01\uff05\uff08\uff09\uff0c\uff0e\uff11\uff1a\uff1b\uff1f\uff5e"
)
CONTROLS = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
MARKS = string.punctuation + OTHER_MARKS + CONTROLS
SPACES = str.maketrans(MARKS, " " * len(MARKS))
# Longer pieces hardly come again: text without spaces, addresses.
LONGEST_KEPT = 64
MOST_PIECES = 1 << 17


class Shingler:
    """Turns a text into the hashes of its n-grams of words.

    All that is done to a text happens between white space, so each piece is done once and remembered.
    """

    def __init__(self, ngram: int) -> None:
        """Load the rules of words.

        Raises:
            DataError: spaCy or xxhash is not installed.
        """
        try:
            from xxhash import xxh64_intdigest
        except ImportError:
            raise DataError("the package `xxhash` is not installed: pip install 'meshwright[clean]'") from None
        self._hash = xxh64_intdigest
        self._ngram = ngram
        self._pieces = _Pieces(WordSplitter())

    def __call__(self, text: str) -> UInt64s:
        """XXH64 (seed 0) of each n-gram, words joined by one space, in text order: uint64 [words - n + 1], or [0]."""
        words = self.words(text)
        count = max(0, len(words) - self._ngram + 1)
        ngrams = zip(*(itertools.islice(words, first, None) for first in range(self._ngram)), strict=False)
        return np.fromiter(map(self._hash, map(b" ".join, ngrams)), np.uint64, count)

    def words(self, text: str) -> list[bytes]:
        """Words in UTF-8: lower case, no marks, 0 for each number, letters without accents."""
        self._pieces.forget()
        return list(itertools.chain.from_iterable(map(self._pieces.__getitem__, text.split())))


class _Pieces(dict[str, tuple[bytes, ...]]):
    """Words of each short piece met lately."""

    def __init__(self, splitter: WordSplitter) -> None:
        super().__init__()
        self._splitter = splitter
        self._before: dict[str, tuple[bytes, ...]] = {}

    def forget(self) -> None:
        """Where there are ``MOST_PIECES``, forget those that were not met since there were last as many."""
        if len(self) > MOST_PIECES:
            self._before = dict(self)
            self.clear()

    def __missing__(self, piece: str) -> tuple[bytes, ...]:
        words = self._before.get(piece)
        if words is None:
            words = tuple(word.encode() for word in self._splitter.words(_normal(piece)))
        if len(piece) <= LONGEST_KEPT:
            self[piece] = words
        return words


def _normal(piece: str) -> str:
    text = piece.lower().strip(string.punctuation)
    if text.isascii() and text.isalpha():
        return text
    text = NUMBER.sub("0", text).translate(SPACES)
    if text.isascii():
        return text
    return "".join(letter for letter in unicodedata.normalize("NFD", text) if unicodedata.category(letter) != "Mn")
