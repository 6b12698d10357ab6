"""Rule sets by name, one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright.data.clean.c4 import C4
from meshwright.data.clean.document import Decision, Document, RuleSet
from meshwright.data.clean.fineweb import FineWeb
from meshwright.data.clean.gopher import GopherQuality, GopherRepetition
from meshwright.data.clean.language import keep_languages
from meshwright.data.clean.mask import mask
from meshwright.data.clean.repair import unicode_repair
from meshwright.data.clean.words import WordSplitter
from meshwright.data.errors import DataError

RULE_SETS: dict[str, tuple[RuleSet, ...]] = {
    "gopher": (GopherRepetition(), GopherQuality()),
    "c4": (C4(),),
    "c4-fineweb": (C4(terminal_punctuation=False),),
    "fineweb": (FineWeb(),),
}
NOTHING_LEFT = "nothing_left"


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What to do to each document, in this order.

    Attributes:
        repair_unicode: undo wrong decodings.
        languages: ISO 639 codes to keep; none keeps all.
        rule_sets: names of ``RULE_SETS``; ``c4-fineweb`` is ``c4`` without its rule on the ends of lines.
        mask_pii: replace e-mail and public IP addresses in what is kept.
    """

    repair_unicode: bool = False
    languages: tuple[str, ...] = ()
    rule_sets: tuple[str, ...] = ()
    mask_pii: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self != NO_CLEANING

    def cleaner(self) -> "Cleaner":
        """The steps, ready to work.

        Raises:
            DataError: a name is not known, or a package that a step needs is not installed.
        """
        if unknown := [name for name in self.rule_sets if name not in RULE_SETS]:
            raise DataError(f"rule set {unknown[0]!r} is not known; known are {', '.join(RULE_SETS)}")
        rules: list[RuleSet] = [keep_languages(self.languages)] if self.languages else []
        rules += [rule for name in self.rule_sets for rule in RULE_SETS[name]]
        return Cleaner(rules, unicode_repair() if self.repair_unicode else None, mask if self.mask_pii else None)


NO_CLEANING = Cleaning()


class Cleaner:
    """Applies rule sets to texts; the first that drops a document names the reason."""

    def __init__(
        self,
        rules: Sequence[RuleSet],
        before: Callable[[str], str] | None = None,
        after: Callable[[str], str] | None = None,
    ) -> None:
        self._rules, self._before, self._after = rules, before, after
        self._splitter = WordSplitter()

    def __call__(self, text: str) -> Decision:
        """The text to keep, edited where a step edits, or the rule that dropped it."""
        document = Document(self._before(text) if self._before else text, self._splitter)
        for rule in self._rules:
            if not document.text or document.text.isspace():
                break
            decision = rule(document)
            if decision.text is None:
                return decision
            if decision.text != document.text:
                document = Document(decision.text, self._splitter)
        if not document.text or document.text.isspace():
            return Decision(None, NOTHING_LEFT)
        return Decision(self._after(document.text) if self._after else document.text)
