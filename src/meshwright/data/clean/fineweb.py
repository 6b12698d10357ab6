"""The rules that FineWeb added to those of Gopher and C4: lists, and pages whose lines were cut or repeated.

Source: Penedo et al. 2024, arXiv:2406.17557, section 3.6, for the shares of lines that end in punctuation, of repeated
characters and of short lines. The fourth rule, line ends per word, and all thresholds are those of the code that made
the data set.
"""

from dataclasses import dataclass

from meshwright.data.clean.document import Decision, Document


@dataclass(frozen=True, kw_only=True)
class FineWeb:
    """Drops documents whose lines are not those of prose.

    Attributes:
        min_terminal_lines: share of lines that end in a mark that ends sentences.
        max_short_lines: share of lines of at most ``short_line`` characters.
        short_line: characters.
        max_duplicate_characters: share of characters in lines that occurred before.
        max_line_ends: line ends per word.
    """

    min_terminal_lines: float = 0.12
    max_short_lines: float = 0.67
    short_line: int = 30
    max_duplicate_characters: float = 0.01
    max_line_ends: float = 0.3

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
