"""PREFIX.report.json: what went into a corpus, what came out of it, and what was dropped on the way, by which rule."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.data.clean.cleaner import Cleaning
from meshwright.data.clean.report import CleanCounts, Size
from meshwright.data.clean.sample import EDITED_AWAY, Estimate
from meshwright.data.deduplicate.report import DuplicateCounts
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.inputs.part import Tally
from meshwright.data.preparation.directories import CLEAN_PACKAGES, SIGNATURE_PACKAGES, TOKEN_PACKAGES
from meshwright.data.preparation.shards import write_json
from meshwright.data.preparation.stage_keys import version
from meshwright.data.record import CorpusRecord

FORMAT = "meshwright-data-report"
REPORT_SUFFIX = ".report.json"
PACKAGES = tuple(dict.fromkeys(("meshwright", *TOKEN_PACKAGES, *CLEAN_PACKAGES, *SIGNATURE_PACKAGES)))


@dataclass(frozen=True)
class Amount:
    """Some of the text; ``characters`` and ``tokens`` are None where nothing has counted them.

    Attributes:
        estimated: whether the tokens are.
    """

    documents: int = 0
    characters: int | None = 0
    tokens: int | None = 0
    estimated: bool = False

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            self.documents + other.documents,
            _sum(self.characters, other.characters),
            _sum(self.tokens, other.tokens),
            self.estimated or other.estimated,
        )


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Results of all stages.

    Attributes:
        tally: what the first stage met in the inputs.
        cleaned: what cleaning counted; None where nothing was cleaned.
        estimates: tokens of what cleaning took away, by rule and ``EDITED_AWAY``.
        notes: on inputs that were passed over.
        deduplication / duplicates: what was looked for and found; None where nothing was.
        against: prefixes of the corpora made before.
    """

    record: CorpusRecord
    tally: Tally
    cleaning: Cleaning
    cleaned: CleanCounts | None
    estimates: Mapping[str, Estimate]
    notes: Sequence[str] = ()
    deduplication: Deduplication | None = None
    duplicates: DuplicateCounts | None = None
    against: Sequence[str] = ()

    def save(self, path: Path) -> None:
        """Write the report."""
        write_json(path, self.as_json(), indent=2)

    def as_json(self) -> dict[str, Any]:
        """The content of PREFIX.report.json.

        ``flow`` tells of ``read`` documents (without those that are ``empty`` or ``too_long``), of what each step took
        away, and of what was ``kept``: they add up. Tokens count the end-of-text token of each document. Those kept are
        exact, the others are estimated: dropped documents and edits from samples; duplicates, and edits where all lines
        are too long for samples, at the rate of what is kept.
        """
        return {
            "format": FORMAT,
            "version": 1,
            "inputs": list(self.record.inputs),
            "files": self.record.files,
            "flow": {step: asdict(amount) for step, amount in self.flow().items()},
            "train": asdict(self.record.train),
            "eval": asdict(self.record.eval),
            "eval_fraction": self.record.eval_fraction,
            "vocab_size": self.record.vocab_size,
            "invalid_utf8": self.record.invalid_utf8,
            "notes": [*self.notes, *self.tally.notes()],
            "cleaning": self._cleaning(self.cleaned) if self.cleaned else None,
            "deduplication": self._deduplication(),
            "versions": {name: found for name in PACKAGES if (found := version(name))},
        }

    def flow(self) -> dict[str, Amount]:
        """What was read, what each step took away, and what was kept."""
        kept = self._kept()
        steps: dict[str, Amount] = {}
        if self.cleaned:
            steps |= {"cleaning": self._dropped(self.cleaned), "editing": self._edited_away(self.cleaned, kept)}
        if self.duplicates:
            found = {"exact_duplicates": self.duplicates.exact, "near_duplicates": self.duplicates.near}
            steps |= {step: _duplicates(size, kept) for step, size in found.items()}
        left_out = {"empty": Amount(self.tally.empty), "too_long": Amount(self.tally.too_long, None, None)}
        return {**left_out, "read": sum(steps.values(), kept), **steps, "kept": kept}

    def _kept(self) -> Amount:
        splits = (self.record.train, self.record.eval)
        characters = None
        if self.duplicates:
            found = self.duplicates
            characters = found.read.characters - found.exact.characters - found.near.characters
        elif self.cleaned:
            characters = self.cleaned.kept.characters
        return Amount(sum(split.documents for split in splits), characters, sum(split.tokens for split in splits))

    def _dropped(self, cleaned: CleanCounts) -> Amount:
        rules = cleaned.dropped
        tokens = sum(self._tokens(rule, size.documents) for rule, size in rules.items())
        documents = sum(size.documents for size in rules.values())
        characters = sum(size.characters for size in rules.values())
        return Amount(documents, characters, tokens, bool(rules))

    def _tokens(self, rule: str, documents: int) -> int:
        return round(self.estimates[rule].tokens) + documents

    def _edited_away(self, cleaned: CleanCounts, kept: Amount) -> Amount:
        characters = cleaned.read.characters - cleaned.kept.characters
        characters -= sum(size.characters for size in cleaned.dropped.values())
        gone = self.estimates.get(EDITED_AWAY, Estimate())
        rate = gone.tokens / gone.characters if gone.sampled else _rate(kept)
        return Amount(0, characters, round(rate * characters), bool(characters))

    def _cleaning(self, cleaned: CleanCounts) -> dict[str, Any]:
        content = cleaned.as_json()
        for rule, dropped in content["dropped"].items():
            sampled = self.estimates[rule].sampled
            dropped |= {"tokens": self._tokens(rule, dropped["documents"]), "sampled_characters": sampled}
        return {**asdict(self.cleaning), "thresholds": self.cleaning.thresholds_in_use(), **content}

    def _deduplication(self) -> dict[str, Any] | None:
        if self.deduplication is None or self.duplicates is None:
            return None
        return {**asdict(self.deduplication), "against": list(self.against), "found": asdict(self.duplicates)}


def _duplicates(size: Size, kept: Amount) -> Amount:
    """Documents that repeat others have as many tokens per character as those that are kept."""
    tokens = round(_rate(kept) * size.characters) + size.documents
    return Amount(size.documents, size.characters, tokens, bool(size.documents))


def _rate(kept: Amount) -> float:
    """Tokens per character, without those that end a text."""
    assert kept.tokens is not None
    return (kept.tokens - kept.documents) / max(kept.characters or 0, 1)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
