"""The rules of C4: lines that read like sentences stay, pages of code and place holders go.

Source: Raffel et al. 2020, arXiv:1910.10683, section 2.2, and, for words of more than 1000 characters, citation marks
and policy lines, the code that made the published data set. Its list of bad words is left out.
"""

import re
from dataclasses import dataclass

from meshwright.data.clean.document import Decision, Document

CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
TERMINAL = (".", "?", "!", '"', "'")
POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


@dataclass(frozen=True, kw_only=True)
class C4:
    """Keeps the lines that pass, and drops a document that has too few sentences left or shows that it is no prose.

    Attributes:
        terminal_punctuation: drop lines that do not end in a mark of ``TERMINAL``, or end in an ellipsis.
        min_sentences: fewer after the lines are dropped, and the document is dropped.
        min_line_words: lines of fewer words, as white space separates them, are dropped.
        max_word_length: lines with a longer word, characters, are dropped.
    """

    terminal_punctuation: bool = True
    min_sentences: int = 5
    min_line_words: int = 3
    max_word_length: int = 1000

    def __call__(self, document: Document) -> Decision:
        """Keep the good lines, or drop the document."""
        kept: list[str] = []
        for raw in document.text.splitlines():
            line = self._readable(raw.strip())
            if line is None:
                continue
            lower = line.lower()
            if "lorem ipsum" in lower:
                return Decision(None, "c4.lorem_ipsum")
            if "javascript" in lower:
                continue
            if "{" in line:
                return Decision(None, "c4.curly_bracket")
            if not any(phrase in lower for phrase in POLICY):
                kept.append(line)
        if not self._enough_sentences(kept, document):
            return Decision(None, "c4.too_few_sentences")
        return Decision("\n".join(kept).strip())

    def _readable(self, line: str) -> str | None:
        """The line without citation marks, or None where its shape is not that of a sentence."""
        words = line.split()
        if len(line) > self.max_word_length and any(len(word) > self.max_word_length for word in words):
            return None
        if "[" in line:
            line = CITATION.sub("", line)
        if self.terminal_punctuation and (not line.endswith(TERMINAL) or line.endswith("...")):
            return None
        return line if len(words) >= self.min_line_words else None

    def _enough_sentences(self, lines: list[str], document: Document) -> bool:
        count = 0
        for line in lines:
            count += document.splitter.sentences(line)
            if count >= self.min_sentences:
                return True
        return False
