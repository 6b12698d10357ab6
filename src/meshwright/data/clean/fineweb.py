"""The rules that FineWeb added to those of Gopher and C4: lists, and pages whose lines were cut or repeated.

Source: Penedo et al. 2024, arXiv:2406.17557, section 3.6, for the shares of lines that end in punctuation, of repeated
characters and of short lines. The fourth rule, line ends per word, and all thresholds are those of the code that made
the data set.
"""

from dataclasses import dataclass
from typing import ClassVar

from meshwright.data.clean.document import Decision, Document
from meshwright.data.clean.rule import Rule, count, ratio, share

SOURCE = "arXiv:2406.17557, 3.6"


@dataclass(frozen=True, kw_only=True)
class FineWeb:
    """Drops documents whose lines are not those of prose; ``RULES`` says what its thresholds are compared with."""

    min_terminal_lines: float = share(0.12)
    max_short_lines: float = share(0.67)
    short_line: int = count(30)
    max_duplicate_characters: float = share(0.01)
    max_line_ends: float = ratio(0.3)

    PREFIX: ClassVar[str] = "fineweb"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("empty", "no line is left", (), "the code of FineWeb"),
        Rule("too_few_terminal_lines", "share of lines that end as sentences do", ("min_terminal_lines",), SOURCE),
        Rule(
            "too_many_short_lines",
            "share of lines of short_line characters or fewer",
            ("max_short_lines", "short_line"),
            SOURCE,
        ),
        Rule(
            "duplicate_characters",
            "share of characters in lines that occurred before",
            ("max_duplicate_characters",),
            SOURCE,
        ),
        Rule("too_many_line_ends", "line ends per word", ("max_line_ends",), "the code of FineWeb"),
    )

    def __call__(self, document: Document) -> Decision:
        """Keep the text as it is, or drop it."""
        rule = self._rule(document)
        return Decision(None, f"fineweb.{rule}") if rule else Decision(document.text)

    def _rule(self, document: Document) -> str | None:
        text = document.text
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        if not lines:
            return "empty"
        if sum(line.endswith(document.splitter.sentence_ends) for line in lines) / len(lines) < self.min_terminal_lines:
            return "too_few_terminal_lines"
        if sum(len(line) <= self.short_line for line in lines) / len(lines) > self.max_short_lines:
            return "too_many_short_lines"
        line_ends = text.count("\n")
        duplicates = sum(map(len, lines)) - sum(map(len, set(lines)))
        if duplicates / (len(text) - line_ends) > self.max_duplicate_characters:
            return "duplicate_characters"
        if line_ends / len(document.words) > self.max_line_ends:
            return "too_many_line_ends"
        return None
