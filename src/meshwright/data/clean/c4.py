"""The rules of C4: lines that read like sentences stay, pages of code and place holders go.

Source: Raffel et al. 2020, arXiv:1910.10683, section 2.2, and, for words of more than 1000 characters, citation marks
and policy lines, the code that made the published data set. Its list of bad words is left out.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from meshwright.data.clean.document import Decision, Document
from meshwright.data.clean.rule import Rule, count

CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
TERMINAL = (".", "?", "!", '"', "'")
POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
DROP_DOCUMENT = ("lorem_ipsum", "curly_bracket")
PAPER, CODE = "arXiv:1910.10683, 2.2", "the code of C4"


@dataclass(frozen=True, kw_only=True)
class C4:
    """Keeps the lines that pass, and drops a document that has too few sentences left or shows that it is no prose.

    ``RULES`` says what its thresholds are compared with.

    Attributes:
        terminal_punctuation: drop lines that do not end in a mark of ``TERMINAL``, or end in an ellipsis.
    """

    terminal_punctuation: bool = True
    min_sentences: int = count(5)
    min_line_words: int = count(3)
    max_word_length: int = count(1000)

    PREFIX: ClassVar[str] = "c4"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("lorem_ipsum", "a line has the words lorem ipsum", (), PAPER),
        Rule("curly_bracket", "a line has {", (), PAPER),
        Rule("too_few_sentences", "sentences in the lines left", ("min_sentences",), PAPER),
        Rule("long_word", "length of the longest word, characters", ("max_word_length",), CODE, "line"),
        Rule("no_terminal_punctuation", "no end of a sentence (not in c4-fineweb)", (), PAPER, "line"),
        Rule("short_line", "words between white space", ("min_line_words",), PAPER, "line"),
        Rule("javascript", "the word javascript", (), PAPER, "line"),
        Rule("policy", "words such as: privacy policy, uses cookies", (), PAPER, "line"),
        Rule("citation", "marks such as [12] or [edit]", (), CODE, "mark"),
    )

    def __call__(self, document: Document) -> Decision:
        """Keep the good lines, or drop the document."""
        kept: list[str] = []
        edits: dict[str, int] = {}
        for raw in document.text.splitlines():
            line, rule, marks = self._judged(raw.strip())
            if rule in DROP_DOCUMENT:
                return Decision(None, f"c4.{rule}")
            if rule is None:
                kept.append(line)
            times = marks if rule is None else int(bool(line))
            if times:
                name = f"c4.{rule or 'citation'}"
                edits[name] = edits.get(name, 0) + times
        if not self._enough_sentences(kept, document):
            return Decision(None, "c4.too_few_sentences")
        return Decision("\n".join(kept).strip(), edits=edits)

    def _judged(self, line: str) -> tuple[str, str | None, int]:
        """The line without citation marks, the rule that drops it or the document, if any, and the number of marks."""
        words, marks = line.split(), 0
        if len(line) > self.max_word_length and any(len(word) > self.max_word_length for word in words):
            return line, "long_word", 0
        if "[" in line:
            line, marks = CITATION.subn("", line)
        if self.terminal_punctuation and (not line.endswith(TERMINAL) or line.endswith("...")):
            return line, "no_terminal_punctuation", 0
        if len(words) < self.min_line_words:
            return line, "short_line", 0
        return line, _said(line), marks

    def _enough_sentences(self, lines: list[str], document: Document) -> bool:
        count = 0
        for line in lines:
            if count >= self.min_sentences:
                break
            count += document.splitter.sentences(line)
        return count >= self.min_sentences


def _said(line: str) -> str | None:
    """The rule that drops a line, or its document, for what it says."""
    lower = line.lower()
    if "lorem ipsum" in lower:
        return "lorem_ipsum"
    if "javascript" in lower:
        return "javascript"
    if "{" in line:
        return "curly_bracket"
    return "policy" if any(phrase in lower for phrase in POLICY) else None
