"""Examples in Markdown files: fenced blocks with a comment in front of them that says what is to be done with them.

    <!-- file: NAME -->          the block is the text of NAME in the folder that commands run in
    <!-- run -->                 the block holds ``$ command`` lines, each with the output that it must print
    <!-- run: exit 2 -->         the same for a command that must end with that code
    <!-- run: numbers vary -->   the same, but numbers may be others than those shown
    <!-- quickstart -->          the block is taken from the output of the quickstart

In expected output, ``...`` stands for anything on a line, and alone on a line for any lines.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^>]+?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?:\d+h)?(?:\d+m)?\d+s\b|\d[\d,.]*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Example:
    """One fenced block: its page, the line that it starts at, its language, its text and the comment in front."""

    page: Path
    line: int
    kind: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def examples(page: Path) -> list[Example]:
    """Every fenced block of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Example(
            page=page,
            line=text.count("\n", 0, match.start()) + 1,
            kind=match["kind"],
            text=match["text"],
            mark=match["mark"] or "",
        )
        for match in BLOCK.finditer(text)
    ]


def commands(example: Example) -> list[tuple[str, str]]:
    """(command, expected output) of a console block; a backslash at the end of a line goes on in the next."""
    joined = example.text.replace("\\\n", "")
    parts = re.split(r"^\$ ", joined, flags=re.MULTILINE)
    assert not parts[0].strip(), f"{example}: output before the first command"
    pairs = (part.partition("\n") for part in parts[1:])
    return [(command.strip(), output) for command, _, output in pairs]


def matches(expected: str, printed: str, *, numbers_vary: bool = False) -> bool:
    """Whether output is as expected, ``...`` being a wild card. Spaces at line ends do not count."""
    if numbers_vary:
        expected, printed = ("\n".join(map(without_numbers, text.splitlines())) for text in (expected, printed))
    pattern = ""
    for line in expected.strip().splitlines():
        escaped = re.escape(line.rstrip()).replace(r"\.\.\.", "[^\n]*")
        pattern += r"(?:[^\n]*\n)*?" if line.strip() == "..." else escaped + "\n"
    lines = "".join(line.rstrip() + "\n" for line in printed.strip().splitlines())
    return re.fullmatch(pattern, lines) is not None


def without_numbers(line: str) -> str:
    """A line with every number and duration replaced, to compare the form of two runs."""
    return " ".join(NUMBER.sub("#", line).split())
