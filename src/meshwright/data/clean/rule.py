"""Rules as users see them, and thresholds: fields of a rule set that users may set, each with its legal range."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

RANGE = "range"
# More than there is of anything in a document, which has 2^26 bytes at most.
MOST = 1_000_000_000


@dataclass(frozen=True)
class Rule:
    """One rule of a rule set.

    Attributes:
        name: in reports, after the prefix of its set.
        about: what it measures or looks for.
        thresholds: fields of the rule set that it compares with.
        source: where it is published.
        drops: what it takes away.
    """

    name: str
    about: str
    thresholds: tuple[str, ...]
    source: str
    drops: Literal["document", "line", "mark"] = "document"


@dataclass(frozen=True)
class Range:
    """Legal values of a threshold: from 0 to ``most``; ``whole`` numbers, or any."""

    whole: bool = False
    most: int = MOST

    def __contains__(self, value: object) -> bool:
        """Whether ``value`` is a number of this range."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if self.whole and not isinstance(value, int):
            return False
        return 0 <= value <= self.most

    def __str__(self) -> str:
        """In words, such as ``a number from 0 to 1``."""
        return f"{'a whole number' if self.whole else 'a number'} from 0 to {self.most}"


def share(default: float) -> Any:
    """A threshold that is a part of a whole."""
    return field(default=default, metadata={RANGE: Range(most=1)})


def ratio(default: float) -> Any:
    """A threshold that may be above 1, such as a mean, or marks per word."""
    return field(default=default, metadata={RANGE: Range()})


def count(default: int, *, most: int = MOST) -> Any:
    """A threshold that counts."""
    return field(default=default, metadata={RANGE: Range(whole=True, most=most)})


def thresholds(rule_set: Any) -> dict[str, tuple[Any, Range]]:
    """Default and range of each threshold of a rule set or its class, by name."""
    return {item.name: (item.default, item.metadata[RANGE]) for item in fields(rule_set) if RANGE in item.metadata}
