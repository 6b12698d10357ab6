"""What a rule set gets and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.data.clean.words import WordSplitter

NOTHING_LEFT = "nothing_left"


class Document:
    """A text, and its words once a rule asks for them.

    Attributes:
        text: the document as the rules before left it.
    """

    def __init__(self, text: str, splitter: WordSplitter) -> None:
        self.text = text
        self.splitter = splitter

    @cached_property
    def words(self) -> list[str]:
        """Words and punctuation marks in text order; none is empty or has white space."""
        return self.splitter.words(self.text)


@dataclass(frozen=True)
class Decision:
    """``text`` to keep, perhaps edited; or None, and the name of the ``rule`` that dropped the document.

    Attributes:
        edits: how often each kind of edit was made to what is kept.
        language: of the document, where it was asked for.
    """

    text: str | None
    rule: str | None = None
    edits: Mapping[str, int] = field(default_factory=dict)
    language: str | None = None


RuleSet = Callable[[Document], Decision]
