"""Rule sets by name, one after another."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.data.clean.c4 import C4
from meshwright.data.clean.catalogue import threshold_mistakes, thresholds_in_use, with_thresholds
from meshwright.data.clean.document import NOTHING_LEFT, Decision, Document, RuleSet
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
REPAIRED = "repair_unicode"


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What to do to each document, in this order.

    Attributes:
        repair_unicode: undo wrong decodings.
        languages: ISO 639 codes to keep; none keeps all.
        rule_sets: names of ``RULE_SETS``; ``c4-fineweb`` is ``c4`` without its rule on the ends of lines.
        mask_pii: replace e-mail and public IP addresses in what is kept.
        thresholds: by name (``catalogue.THRESHOLDS``), where they are not to be the published ones.
    """

    repair_unicode: bool = False
    languages: tuple[str, ...] = ()
    rule_sets: tuple[str, ...] = ()
    mask_pii: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self != NO_CLEANING

    def cleaner(self) -> "Cleaner":
        """The steps, ready to work.

        Raises:
            DataError: a name or a threshold is wrong, or a package that a step needs is not installed.
        """
        for _, message in self._rule_mistakes():
            raise DataError(message)
        used = self.thresholds_in_use()
        rules: list[RuleSet] = [keep_languages(self.languages)] if self.languages else []
        rules += [rule for name in self.rule_sets for rule in RULE_SETS[name]]
        rules = [with_thresholds(rule, used) for rule in rules]
        return Cleaner(rules, unicode_repair() if self.repair_unicode else None, mask if self.mask_pii else None)

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Every wrong name and value, by the key of the config file; keys that a message names stand in braces."""
        yield from self._rule_mistakes()
        for name, message in threshold_mistakes(self._prefixes(), self.thresholds):
            yield f"clean.thresholds.{name}", message
        if self.languages:
            try:
                keep_languages(self.languages)
            except DataError as error:
                yield "clean.languages", str(error)

    def thresholds_in_use(self) -> dict[str, float]:
        """Every threshold of the rules that apply, by name.

        Raises:
            DataError: one is not known, not legal, or belongs to rules that do not apply.
        """
        return thresholds_in_use(self._prefixes(), self.thresholds)

    def _rule_mistakes(self) -> Iterator[tuple[str, str]]:
        for name, times in Counter(self.rule_sets).items():
            if name not in RULE_SETS:
                yield "clean.rules", f"rule set {name!r} is not known; known are {', '.join(RULE_SETS)}"
            elif times > 1:
                yield "clean.rules", f"rule set {name!r} is named {times} times"

    def _prefixes(self) -> set[str]:
        return {name.partition("-")[0] for name in self.rule_sets} | ({"language"} if self.languages else set())


NO_CLEANING = Cleaning()


class Cleaner:
    """Applies rule sets to texts; the first that drops a document names the reason."""

    def __init__(
        self,
        rules: Sequence[RuleSet],
        before: Callable[[str], str] | None = None,
        after: Callable[[str], tuple[str, Mapping[str, int]]] | None = None,
    ) -> None:
        self._rules, self._before, self._after = rules, before, after
        self._splitter = WordSplitter()

    def __call__(self, text: str) -> Decision:
        """The text to keep, edited where a step edits, or the rule that dropped it."""
        language = None
        document = Document(self._before(text) if self._before else text, self._splitter)
        edits = {REPAIRED: 1} if document.text != text else {}
        for rule in self._rules:
            if not document.text or document.text.isspace():
                break
            decision = rule(document)
            language = decision.language or language
            if decision.text is None:
                return Decision(None, decision.rule, language=language)
            _add(edits, decision.edits)
            if decision.text != document.text:
                document = Document(decision.text, self._splitter)
        if not document.text or document.text.isspace():
            return Decision(None, NOTHING_LEFT, language=language)
        return self._finished(document.text, edits, language)

    def _finished(self, text: str, edits: dict[str, int], language: str | None) -> Decision:
        if self._after:
            text, masked = self._after(text)
            _add(edits, masked)
        return Decision(text, edits=edits, language=language)


def _add(edits: dict[str, int], more: Mapping[str, int]) -> None:
    for name, times in more.items():
        if times:
            edits[name] = edits.get(name, 0) + times
