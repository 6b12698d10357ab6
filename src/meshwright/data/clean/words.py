"""Words and sentences of English text, as spaCy's rules split them."""

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from meshwright.data.errors import DataError

# Marks at both ends of a piece are taken off one by one, so a run of them costs the square of its length.
LONGEST_PIECE = 10_000
LONGEST_MARKS = 1000
# Some 150 MB; then the splitter starts anew, and with it the library's own table of strings.
MOST_PIECES = 1 << 18
# Marks that always part from the letters before them; a full stop stays with a capital.
MARKED = re.compile(r"[A-Za-z]+[,;:!?)]|[A-Za-z]*[a-z]\.")


class WordSplitter:
    """Splits text into words and punctuation marks.

    White space always ends a word in spaCy's rules, so each piece between white space is split once and
    remembered. Pieces of more than ``LONGEST_PIECE`` characters, or ``LONGEST_MARKS`` where half of them or more are
    neither letters nor digits, are cut into pieces of that length first.
    """

    def __init__(self) -> None:
        """Load the rules.

        Raises:
            DataError: spaCy is not installed.
        """
        try:
            with _torch_hidden():
                from spacy.lang.en import English
                from spacy.lang.lex_attrs import is_punct
                from spacy.pipeline import Sentencizer
        except ImportError:
            raise DataError("the package `spacy` is not installed: pip install 'meshwright[clean]'") from None
        self._rules: Callable[[], Any] = English
        self._pieces = _Pieces(English().tokenizer)
        self._is_punctuation: Callable[[str], bool] = is_punct
        self.sentence_ends: tuple[str, ...] = tuple(Sentencizer.default_punct_chars)
        self._sentence_ends = frozenset(self.sentence_ends)

    def words(self, text: str) -> list[str]:
        """Words and punctuation marks in text order."""
        if len(self._pieces) > MOST_PIECES:
            self._pieces = _Pieces(self._rules().tokenizer)
        pieces = text.split()
        if max(map(len, pieces), default=0) > LONGEST_MARKS:
            pieces = [part for piece in pieces for part in _cut(piece)]
        return list(itertools.chain.from_iterable(map(self._pieces.__getitem__, pieces)))

    def sentences(self, text: str) -> int:
        """Number of sentences, at least 1: a new one starts at the first word after a mark that ends one."""
        count, ended = 1, False
        for word in self.words(text):
            if word in self._sentence_ends:
                ended = True
            elif ended and not self._is_punctuation(word):
                count += 1
                ended = False
        return count


@contextlib.contextmanager
def _torch_hidden() -> Iterator[None]:
    """Keep spaCy from loading torch, which its rules do not use, into every worker: 2 s and 180 MB."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


class _Pieces(dict[str, tuple[str, ...]]):
    """Words of each piece met so far."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer, self._special = tokenizer, tokenizer.rules
        # What spaCy would note about each new string is not asked for, and costs more than splitting.
        tokenizer.vocab.lex_attr_getters = {}

    def __missing__(self, piece: str) -> tuple[str, ...]:
        # The rules take marks and digits off a piece or know it by heart; asking them takes some 20 us.
        if piece in self._special:
            words = self._split(piece)
        elif piece.isalpha():
            words = (piece,)
        elif MARKED.fullmatch(piece) and piece[:-1] not in self._special:
            words = (piece[:-1], piece[-1])
        else:
            words = self._split(piece)
        self[piece] = words
        return words

    def _split(self, piece: str) -> tuple[str, ...]:
        return tuple(token.text for token in self._tokenizer(piece))


def _cut(piece: str) -> list[str]:
    if len(piece) <= LONGEST_MARKS:
        return [piece]
    length = LONGEST_PIECE if 2 * sum(map(str.isalnum, piece)) > len(piece) else LONGEST_MARKS
    return [piece[at : at + length] for at in range(0, len(piece), length)]
