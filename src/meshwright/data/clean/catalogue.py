"""Every rule and every threshold by the names that options, configs and reports use: PREFIX.NAME."""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from meshwright.config.corpus_flags import named, number
from meshwright.data.clean.c4 import C4
from meshwright.data.clean.document import NOTHING_LEFT, RuleSet
from meshwright.data.clean.fineweb import FineWeb
from meshwright.data.clean.gopher import GopherQuality, GopherRepetition
from meshwright.data.clean.language import Language
from meshwright.data.clean.rule import Range, Rule, thresholds
from meshwright.data.errors import DataError

RULE_CLASSES: tuple[Any, ...] = (Language, GopherRepetition, GopherQuality, C4, FineWeb)
OPTIONS = {
    "language": "{clean.languages}",
    "gopher": "gopher in {clean.rules}",
    "c4": "c4 or c4-fineweb in {clean.rules}",
    "fineweb": "fineweb in {clean.rules}",
}


@dataclass(frozen=True)
class Threshold:
    """A number that rules compare with; its default is the published one."""

    default: float
    legal: Range


THRESHOLDS: dict[str, Threshold] = {
    f"{rule_class.PREFIX}.{name}": Threshold(default, legal)
    for rule_class in RULE_CLASSES
    for name, (default, legal) in thresholds(rule_class).items()
}


@dataclass(frozen=True)
class ListedRule:
    """A rule with full names: of itself, as reports give it, and of its thresholds."""

    name: str
    about: str
    thresholds: tuple[str, ...]
    source: str
    drops: Literal["document", "line", "mark"]


def listed_rules() -> Iterator[ListedRule]:
    """Every rule, in the order in which they look at a document."""
    for rule_class in RULE_CLASSES:
        prefix = rule_class.PREFIX
        rules: tuple[Rule, ...] = rule_class.RULES
        for rule in rules:
            names = tuple(f"{prefix}.{name}" for name in rule.thresholds)
            yield ListedRule(f"{prefix}.{rule.name}", rule.about, names, rule.source, rule.drops)
    yield ListedRule(NOTHING_LEFT, "nothing but white space is left", (), "", "document")


def parse_thresholds(settings: Sequence[str]) -> dict[str, Any]:
    """Values of thresholds from settings ``NAME=VALUE``, not yet checked.

    Raises:
        DataError: one is not of this form, or comes twice.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise DataError(f"threshold {setting!r}: write NAME=VALUE, such as gopher.min_words=30")
        if name in values:
            raise DataError(f"threshold {name} is given twice: {values[name]} and {value}")
        values[name] = number(value)
    return values


def threshold_mistakes(prefixes: Collection[str], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each wrong threshold with what is wrong, for rules with these prefixes; keys that are named stand in braces."""
    wrong = dict(_single_mistakes(prefixes, values))
    yield from wrong.items()
    used = _with_defaults(prefixes, {name: value for name, value in values.items() if name not in wrong})
    for name, least in used.items():
        most = used.get(above := name.replace(".min_", ".max_"), least)
        if least > most:
            yield name if name in values else above, f"{name} ({least:g}) is above {above} ({most:g}): nothing stays"


def _single_mistakes(prefixes: Collection[str], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if name not in THRESHOLDS:
            yield name, f"is not known; {_hint(str(name))}"
        elif value not in (legal := THRESHOLDS[name].legal):
            yield name, f"{value!r} is not legal; it takes {legal}"
        elif (prefix := name.partition(".")[0]) not in prefixes:
            yield name, f"has no use without {OPTIONS[prefix]}"


def thresholds_in_use(prefixes: Collection[str], values: Mapping[str, Any]) -> dict[str, float]:
    """Every threshold of the rules with these prefixes: as in ``values``, else as published.

    Raises:
        DataError: one of ``values`` is wrong or belongs to other rules, or a minimum is above its maximum.
    """
    if wrong := [f"threshold {name}: {message}" for name, message in threshold_mistakes(prefixes, values)]:
        raise DataError(named("\n".join(wrong), flags=True))
    return _with_defaults(prefixes, values)


def _with_defaults(prefixes: Collection[str], values: Mapping[str, Any]) -> dict[str, float]:
    given = {name: values[name] if THRESHOLDS[name].legal.whole else float(values[name]) for name in sorted(values)}
    return {name: item.default for name, item in THRESHOLDS.items() if name.partition(".")[0] in prefixes} | given


def with_thresholds(rule_set: Any, values: Mapping[str, float]) -> RuleSet:
    """The rule set with those of ``values`` that are its own."""
    named = {name: f"{rule_set.PREFIX}.{name}" for name in thresholds(rule_set)}
    changed: RuleSet = replace(rule_set, **{name: values[full] for name, full in named.items() if full in values})
    return changed


def _hint(name: str) -> str:
    for rule in listed_rules():
        if name == rule.name and rule.thresholds:
            return f"it is a rule; its threshold is {' and '.join(rule.thresholds)}"
    near = difflib.get_close_matches(name, THRESHOLDS, 3, 0.6)
    prefix = name.partition(".")[0]
    legal = [known for known in THRESHOLDS if known.startswith(f"{prefix}.")] or list(THRESHOLDS)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{guess}known are {', '.join(legal)}"
