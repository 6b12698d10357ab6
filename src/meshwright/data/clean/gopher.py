"""The rules of MassiveText (Gopher): quality and repetition.

Source: Rae et al. 2021, arXiv:2112.11446, appendix A.1.1; thresholds of repetition from its table A1. The paper leaves
open what a word is; words here are spaCy's, of which punctuation marks are some, as in datatrove.
"""

import re
import string
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from meshwright.data.clean.document import Decision, Document
from meshwright.data.clean.ngrams import NGrams
from meshwright.data.clean.rule import Rule, count, ratio, share

ELLIPSES = ("...", "\u2026")
BULLETS = ("\u2022", "-")
STOP = "the be to of and that have with"
STOP_WORDS = frozenset(STOP.split())
# Words of nothing but these are not counted as words; the marks outside ASCII are those that datatrove knows.
CONTROLS = frozenset(map(chr, (*range(9), *range(11, 32), *range(127, 160))))
MARKS = "\xab\xb4\xbb\u2013\u2014\u2019\u201c\u201d\u201e\u2026\u2236\u2501\u25ba"
WIDE_MARKS = "\u3001\uff05\uff08\uff09\uff0c\uff11\uff1a\uff1b\uff5e"
BRACKETS = "\u3008\u3009\u300a\u300b\u300c\u300d\u3010\u3011"

BLANK_LINES = re.compile(r"\n{2,}")
LINE_ENDS = re.compile(r"\n+")
QUALITY = "arXiv:2112.11446, A.1.1"
REPETITION = "arXiv:2112.11446, table A1"
TOP_N, DUPLICATE_N = (2, 3, 4), (5, 6, 7, 8, 9, 10)


@dataclass(frozen=True, kw_only=True)
class GopherQuality:
    """Drops documents that do not look like prose; ``RULES`` says what its thresholds are compared with."""

    min_words: int = count(50)
    max_words: int = count(100_000)
    min_mean_word_length: float = ratio(3.0)
    max_mean_word_length: float = ratio(10.0)
    max_symbol_ratio: float = ratio(0.1)
    max_bullet_lines: float = share(0.9)
    max_ellipsis_lines: float = share(0.3)
    min_alphabetic_words: float = share(0.8)
    min_stop_words: int = count(2, most=len(STOP_WORDS))

    PREFIX: ClassVar[str] = "gopher"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("too_few_words", "words; punctuation is none", ("min_words",), QUALITY),
        Rule("too_many_words", "words; punctuation is none", ("max_words",), QUALITY),
        Rule("words_too_short", "mean length of words, characters", ("min_mean_word_length",), QUALITY),
        Rule("words_too_long", "mean length of words, characters", ("max_mean_word_length",), QUALITY),
        Rule("too_many_hashes", "hash signs per word", ("max_symbol_ratio",), QUALITY),
        Rule("too_many_ellipses", "ellipses per word", ("max_symbol_ratio",), QUALITY),
        Rule(
            "too_many_bullet_lines", "share of lines that start with a bullet or hyphen", ("max_bullet_lines",), QUALITY
        ),
        Rule("too_many_ellipsis_lines", "share of lines that end with an ellipsis", ("max_ellipsis_lines",), QUALITY),
        Rule("too_few_alphabetic_words", "share of words with a letter", ("min_alphabetic_words",), QUALITY),
        Rule("too_few_stop_words", "different words of: " + STOP, ("min_stop_words",), QUALITY),
    )

    def __call__(self, document: Document) -> Decision:
        """Keep the text as it is, or drop it."""
        rule = self._about_words(document) or self._about_lines(document.text) or self._about_language(document.words)
        return Decision(None, f"gopher.{rule}") if rule else Decision(document.text)

    def _about_words(self, document: Document) -> str | None:
        text, words = document.text, document.words
        symbols = _symbols(document.splitter.sentence_ends)
        odd = [word for word in words if not word.isalpha() and symbols.issuperset(word)]
        counted = len(words) - len(odd)
        if counted < self.min_words:
            return "too_few_words"
        if counted > self.max_words:
            return "too_many_words"
        mean = (sum(map(len, words)) - sum(map(len, odd))) / max(counted, 1)
        if mean < self.min_mean_word_length:
            return "words_too_short"
        if mean > self.max_mean_word_length:
            return "words_too_long"
        if text.count("#") / len(words) > self.max_symbol_ratio:
            return "too_many_hashes"
        if sum(map(text.count, ELLIPSES)) / len(words) > self.max_symbol_ratio:
            return "too_many_ellipses"
        return None

    def _about_lines(self, text: str) -> str | None:
        lines = text.splitlines()
        if sum(line.lstrip().startswith(BULLETS) for line in lines) / len(lines) > self.max_bullet_lines:
            return "too_many_bullet_lines"
        if sum(line.rstrip().endswith(ELLIPSES) for line in lines) / len(lines) > self.max_ellipsis_lines:
            return "too_many_ellipsis_lines"
        return None

    def _about_language(self, words: list[str]) -> str | None:
        alphabetic = sum(word.isalpha() or any(map(str.isalpha, word)) for word in words)
        if alphabetic / len(words) < self.min_alphabetic_words:
            return "too_few_alphabetic_words"
        if len(STOP_WORDS.intersection(words)) < self.min_stop_words:
            return "too_few_stop_words"
        return None


@dataclass(frozen=True, kw_only=True)
class GopherRepetition:
    """Drops documents that repeat themselves; ``RULES`` says what its thresholds are compared with.

    Occurrences of one n-gram may overlap, so the most frequent one can have more characters than the text.
    """

    max_duplicate_paragraphs: float = share(0.30)
    max_duplicate_paragraph_characters: float = share(0.20)
    max_duplicate_lines: float = share(0.30)
    max_duplicate_line_characters: float = share(0.20)
    max_top_2_gram: float = ratio(0.20)
    max_top_3_gram: float = ratio(0.18)
    max_top_4_gram: float = ratio(0.16)
    max_duplicate_5_grams: float = share(0.15)
    max_duplicate_6_grams: float = share(0.14)
    max_duplicate_7_grams: float = share(0.13)
    max_duplicate_8_grams: float = share(0.12)
    max_duplicate_9_grams: float = share(0.11)
    max_duplicate_10_grams: float = share(0.10)

    PREFIX: ClassVar[str] = "gopher"
    RULES: ClassVar[tuple[Rule, ...]] = (
        *(
            Rule(f"duplicate_{name}", f"share of {about} that occurred before", (f"max_duplicate_{name}",), REPETITION)
            for name, about in (
                ("paragraphs", "paragraphs"),
                ("paragraph_characters", "characters in paragraphs"),
                ("lines", "lines"),
                ("line_characters", "characters in lines"),
            )
        ),
        *(
            Rule(
                f"top_{n}_gram",
                f"share of characters in the most frequent {n} words",
                (f"max_top_{n}_gram",),
                REPETITION,
            )
            for n in TOP_N
        ),
        *(
            Rule(
                f"duplicate_{n}_grams",
                f"share of characters in {n} words that occurred before",
                (f"max_duplicate_{n}_grams",),
                REPETITION,
            )
            for n in DUPLICATE_N
        ),
    )

    def __call__(self, document: Document) -> Decision:
        """Keep the text as it is, or drop it."""
        rule = self._about_lines(document.text) or self._about_ngrams(document)
        return Decision(None, f"gopher.{rule}") if rule else Decision(document.text)

    def _about_lines(self, text: str) -> str | None:
        share, characters = _duplicates(BLANK_LINES.split(text.strip()))
        if share > self.max_duplicate_paragraphs:
            return "duplicate_paragraphs"
        if characters / len(text) > self.max_duplicate_paragraph_characters:
            return "duplicate_paragraph_characters"
        share, characters = _duplicates(LINE_ENDS.split(text))
        if share > self.max_duplicate_lines:
            return "duplicate_lines"
        if characters / len(text) > self.max_duplicate_line_characters:
            return "duplicate_line_characters"
        return None

    def _about_ngrams(self, document: Document) -> str | None:
        ngrams = NGrams(document.words)
        for n in TOP_N:
            limit = getattr(self, f"max_top_{n}_gram")
            if ngrams.top_characters(n) / len(document.text) > limit:
                return f"top_{n}_gram"
        for n in DUPLICATE_N:
            limit = getattr(self, f"max_duplicate_{n}_grams")
            if ngrams.duplicate_characters(n) / len(document.text) > limit:
                return f"duplicate_{n}_grams"
        return None


def _duplicates(parts: list[str]) -> tuple[float, int]:
    """Share of parts that occurred before, and their characters."""
    unique = set(parts)
    if len(unique) == len(parts):
        return 0.0, 0
    return (len(parts) - len(unique)) / len(parts), sum(map(len, parts)) - sum(map(len, unique))


@lru_cache(maxsize=1)
def _symbols(sentence_ends: tuple[str, ...]) -> frozenset[str]:
    return frozenset((*string.punctuation, *CONTROLS, *MARKS, *WIDE_MARKS, *BRACKETS, *sentence_ends))
