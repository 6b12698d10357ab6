"""Documents to prepare: the standard library, its docstrings, made-up pages at the borders of rules, a made-up web.

The made-up web takes its words from the docstrings: another version of Python makes another corpus.
"""

import ast
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

VOCABULARY = (
    "the be to of and that have with a in is it on for as at by from this which not are was will can more one water "
    "history system language university government development information together something different important "
    "children between country without because another through thought example number family state world school music"
)
WORDS = VOCABULARY.split()
# Some words by chance: how many.
Words = Callable[[random.Random, int], list[str]]
SEED = 6
SIMILARITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
REMEMBERED = 2000


def standard_library() -> Iterator[str]:
    """The source files of this Python's standard library, by path, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not {"site-packages", "test", "tests"}.intersection(path.relative_to(root).parts) and path.stat().st_size:
            yield path.read_text(encoding="utf-8", errors="replace")


def docstrings() -> Iterator[str]:
    """The docstrings of at least 200 characters in them."""
    for source in standard_library():
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= 200:
                    yield text


def nasty(count: int) -> Iterator[str]:
    """Made-up pages: each starts as prose and is spoiled in one to three ways, by amounts around the thresholds."""
    rng = random.Random(SEED)
    for _ in range(count):
        lines = [_sentence(rng) for _ in range(rng.randint(1, 60))]
        for spoil in rng.sample(SPOILERS, rng.randint(1, 3)):
            lines = spoil(rng, lines)
        yield rng.choice(("\n", "\n", "\n\n", " ", "\r\n", "\n \n")).join(lines)


def retold(count: int) -> Iterator[str]:
    """Pages of ``nasty`` and, as often, an earlier one with some of its words replaced."""
    rng = random.Random(SEED)
    pages = nasty(count)
    earlier: list[str] = []
    for _ in range(count):
        page = (
            next(pages)
            if rng.random() < 0.5
            else near_duplicate(rng, rng.choice(earlier or ["-"]), rng.random(), _common)
        )
        earlier.append(page)
        yield page


def _common(rng: random.Random, count: int) -> list[str]:
    return rng.choices(WORDS, k=count)


def generated(size_bytes: int) -> Iterator[str]:
    """A made-up web of about ``size_bytes`` of UTF-8, one page after another, in little memory.

    Prose with the word frequencies of the docstrings and a long tail of made-up words, in pages with and without
    navigation and footers; lists, tables of figures, code, other scripts, and pages spoiled as those of ``nasty``.
    Of all pages 4 % repeat an earlier one to the letter, and 8 % repeat one with some words replaced, so that their
    5-grams have one of the Jaccard similarities ``SIMILARITIES``.
    """
    # It takes its words from the docstrings.
    import web_pages

    rng, words = random.Random(SEED), web_pages.DocstringWords()
    earlier: list[str] = []
    size = 0
    while size < size_bytes:
        kind = rng.random()
        if earlier and kind < 0.04:
            page = rng.choice(earlier)
        elif earlier and kind < 0.12:
            page = near_duplicate(rng, rng.choice(earlier), rng.choice(SIMILARITIES), words)
        else:
            (make,) = rng.choices(list(web_pages.PAGES), web_pages.PAGES.values())
            page = make(rng, words)
            _remember(rng, earlier, page)
        size += len(page.encode()) + 1
        yield page


def pairs(rng: random.Random, count: int, *, ngrams: int, common: int, n: int = 5) -> Iterator[str]:
    """Twice ``count`` texts of ``ngrams`` different n-grams of words; both of a pair have the first ``common``.

    The Jaccard similarity of a pair is common / (2 ngrams - common).
    """
    words = [a + b + c + d + e for a in "bdfgk" for b in "aeiou" for c in "lmnrst" for d in "aeiou" for e in "bdfgk"]
    for _ in range(count):
        chosen = rng.sample(words, 2 * ngrams - common + n - 1)
        yield " ".join(chosen[: ngrams + n - 1])
        yield " ".join(chosen[: common + n - 1] + chosen[ngrams + n - 1 :])


def near_duplicate(rng: random.Random, page: str, similarity: float, words: Words) -> str:
    """A page with each word replaced by chance, so that the expected Jaccard similarity of 5-grams is ``similarity``.

    Of n 5-grams on both sides a share c = (1 - p)^5 is common when a word is replaced with probability p, and
    similarity = c / (2 - c).
    """
    replaced = 1 - (2 * similarity / (1 + similarity)) ** (1 / 5)
    return re.sub(r"\S+", lambda word: words(rng, 1)[0] if rng.random() < replaced else word[0], page)


def _remember(rng: random.Random, earlier: list[str], page: str) -> None:
    if len(earlier) < REMEMBERED:
        earlier.append(page)
    else:
        earlier[rng.randrange(REMEMBERED)] = page


def _sentence(rng: random.Random) -> str:
    words = rng.choices(WORDS, k=rng.randint(2, 25))
    return " ".join(words).capitalize() + rng.choice((".", ".", ".", "?", "!", ",", "...", "", '."'))


def _some(rng: random.Random, lines: list[str], change: "type[str] | object") -> list[str]:
    share = rng.random()
    return [change(line) if rng.random() < share else line for line in lines]  # type: ignore[operator]


def _repeat_lines(rng: random.Random, lines: list[str]) -> list[str]:
    return lines + rng.choices(lines, k=rng.randint(1, len(lines)))


def _repeat_phrase(rng: random.Random, lines: list[str]) -> list[str]:
    phrase = " ".join(rng.choices(WORDS, k=rng.randint(2, 14)))
    return _some(rng, lines, lambda line: f"{line} {phrase}")


def _affix(*affixes: str) -> "type[str] | object":
    def spoil(rng: random.Random, lines: list[str]) -> list[str]:
        affix = rng.choice(affixes)
        return _some(rng, lines, (lambda line: affix + line) if rng.random() < 0.5 else (lambda line: line + affix))

    return spoil


def _insert(*odd: str) -> "type[str] | object":
    def spoil(rng: random.Random, lines: list[str]) -> list[str]:
        for _ in range(rng.randint(1, 1 + len(lines) // 2)):
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(odd))
        return lines

    return spoil


def _dice(rng: random.Random, lines: list[str]) -> list[str]:
    alphabet = rng.choice(
        ("01 23.5 -6", "#@$%&* ()=+", "abcdefghij ", "\u4e2d\u6587\u3002\uff0c \u597d", "\x00\x1b\x85 a\u200b")
    )
    return _some(rng, lines, lambda line: "".join(rng.choices(alphabet, k=rng.randint(1, 120))))


def _squeeze(rng: random.Random, lines: list[str]) -> list[str]:
    return _some(rng, lines, lambda line: line.replace(" ", ""))


def _shorten(rng: random.Random, lines: list[str]) -> list[str]:
    return _some(rng, lines, lambda line: line[: rng.randint(1, 40)])


SPOILERS = [
    _repeat_lines,
    _repeat_phrase,
    _dice,
    _squeeze,
    _shorten,
    _affix("- ", "\u2022 ", "  -", "# ", "* "),
    _affix("...", "\u2026", " #", "##", " [1]", "[edit].", " [citation needed].", "\u3002", " :-)", "!!!"),
    _affix(
        " Don't, I'll, we've.", " e.g. U.S.A. a.m. 3.5km $4.20", " https://example.com/a?b=c&d=e", " me@example.com"
    ),
    _insert("Please enable JavaScript.", "We use cookies.", "Read our privacy policy here.", "a" * 1001 + " b c d."),
    _insert("Lorem ipsum dolor sit amet.", "if (x) { return y; }.", "", " ", "\t", "|---|---|", "=" * 60),
]

FOR_RULES: dict[str, Callable[[], Iterator[str]]] = {
    "standard library": standard_library,
    "docstrings": docstrings,
    "made-up pages": lambda: nasty(2000),
}
"""What cleaning is measured on, by name."""
