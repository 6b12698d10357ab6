"""Pages of a made-up web: prose, navigation, lists, figures, code, other scripts, spoiled pages."""

import itertools
import random
import re
from collections import Counter

from corpora import SPOILERS, Words, docstrings

SYLLABLES = [
    first + second
    for first in ("b", "c", "ch", "d", "f", "g", "h", "l", "m", "n", "p", "qu", "r", "s", "st", "t")
    for second in ("a", "e", "i", "o", "u", "ar", "en", "ing", "on", "us")
]
# First letter, how many from there, what is between words: Cyrillic, Greek, Hebrew, Devanagari, Chinese, Japanese.
SCRIPTS = [
    (0x430, 32, " "),
    (0x3B1, 25, " "),
    (0x5D0, 27, " "),
    (0x905, 53, " "),
    (0x4E00, 2000, ""),
    (0x3042, 80, ""),
]
BOILERPLATE = [
    "We use cookies to give you the best experience on our site.",
    "Please enable JavaScript to view the comments.",
    "Copyright 2024. All rights reserved.",
    "Terms of use | Privacy policy | Contact us",
    "Share this on Facebook",
    "Log in or sign up to leave a comment",
    "Read more...",
    "Subscribe to our newsletter and never miss a story!",
    "You may also like",
    "Posted by admin in News, Uncategorized",
]


class DocstringWords:
    """Words by chance: as often as in the docstrings, and one of ``TAIL`` made-up ones with a share of ``TAIL_SHARE``.

    The n-th of those is as frequent as 1 / (n + 1000), about as in the tail of real vocabularies.
    """

    TAIL, TAIL_SHARE = 500_000, 0.06

    def __init__(self) -> None:
        counts = Counter(word for text in docstrings() for word in re.findall(r"\b[A-Za-z]+(?:'[a-z]+)?\b", text))
        self._words = list(counts)
        tail = [1 / (number + 1000) for number in range(self.TAIL)]
        share = self.TAIL_SHARE / (1 - self.TAIL_SHARE) * counts.total() / sum(tail)
        self._weights = list(itertools.accumulate([*counts.values(), *(share * weight for weight in tail)]))
        self._words += [_made_up(number) for number in range(self.TAIL)]

    def __call__(self, rng: random.Random, count: int) -> list[str]:
        return rng.choices(self._words, cum_weights=self._weights, k=count)


def _made_up(number: int) -> str:
    """A word of two to four syllables, another for each number; some are names, some have accents."""
    letters, rest = "", number + len(SYLLABLES)
    while rest:
        rest, syllable = divmod(rest, len(SYLLABLES))
        letters += SYLLABLES[syllable]
    return letters.capitalize() if number % 3 == 0 else letters.replace("en", "\u00e9n") if number % 7 == 0 else letters


def _prose(rng: random.Random, words: Words) -> str:
    return "\n\n".join(_paragraph(rng, words) for _ in range(1 + int(rng.lognormvariate(1.3, 0.8))))


def _paragraph(rng: random.Random, words: Words) -> str:
    sentences = []
    for _ in range(rng.randint(1, 8)):
        sentence = words(rng, rng.randint(4, 28))
        if rng.random() < 0.2:
            figure = rng.choice((f"{rng.randint(1, 2100)}", f"{rng.random() * 100:.1f}%"))
            sentence[rng.randrange(len(sentence))] = figure
        if len(sentence) > 9:
            sentence[rng.randint(3, 7)] += rng.choice((",", ",", ";", " -", " \u2014", ":"))
        text = " ".join(sentence)
        sentences.append(text[0].upper() + text[1:] + rng.choice("....?!"))
    text = " ".join(sentences)
    return f"\u201c{text}\u201d" if rng.random() < 0.05 else text


def _page(rng: random.Random, words: Words) -> str:
    menu = " | ".join(word.capitalize() for word in words(rng, rng.randint(3, 9)))
    footer = rng.sample(BOILERPLATE, rng.randint(1, 5))
    return "\n".join([menu, *rng.sample(BOILERPLATE, 3), _prose(rng, words), *footer])


def _list(rng: random.Random, words: Words) -> str:
    mark = rng.choice(("- ", "* ", "\u2022 ", ""))
    return "\n".join(mark + " ".join(words(rng, rng.randint(1, 12))) for _ in range(rng.randint(5, 80)))


def _figures(rng: random.Random, words: Words) -> str:
    rows = [words(rng, 4)] + [[f"{rng.gauss(0, 1000):.{rng.randint(0, 3)}f}" for _ in range(4)] for _ in range(40)]
    return "\n".join("\t".join(row) for row in rows)


def _code(rng: random.Random, words: Words) -> str:
    functions = []
    for _ in range(rng.randint(2, 30)):
        name, one, other, result, *comment = (word.lower() for word in words(rng, 12))
        head = f"def {name}_{result}({one}, {other}=None):\n    # {' '.join(comment)}"
        body = f"    if {one} > {rng.randint(0, 99)}:\n        {result} = {one}.{name}({other}[{rng.randint(0, 9)}])"
        functions.append(f"{head}\n{body}\n    return {result}\n")
    return "\n\n".join(functions)


def _other_script(rng: random.Random, words: Words) -> str:
    first, width, space = rng.choice(SCRIPTS)
    lines = (words(rng, 60) for _ in range(rng.randint(1, 20)))
    return "\n".join(space.join(_in_script(rng, word, first, width) for word in line) + "." for line in lines)


def _in_script(rng: random.Random, word: str, first: int, width: int) -> str:
    return "".join(chr(first + int(width * rng.random() ** 2)) for _ in word)


def _spoiled(rng: random.Random, words: Words) -> str:
    lines = _prose(rng, words).splitlines()
    for spoil in rng.sample(SPOILERS, rng.randint(1, 2)):
        lines = spoil(rng, lines)
    return "\n".join(lines) or "-"


PAGES = {_prose: 50, _page: 25, _list: 6, _figures: 3, _code: 5, _other_script: 3, _spoiled: 8}
