"""``--threshold`` and ``--list-rules`` of ``meshwright data prepare``."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any


def add_arguments(group: Any) -> None:
    """Declare the options."""
    group.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="compare with this in place of what is published: gopher.min_words=30 (may be repeated; beside a config "
        "file it replaces thresholds of the same name, the others stay)",
    )
    group.add_argument(
        "--list-rules", action="store_true", help="print all rules and thresholds (--json), nothing else"
    )


def print_rules(as_json: bool) -> None:
    """Print every rule as a table, or as a JSON list."""
    print(json.dumps(list(_rules()), indent=2) if as_json else "\n".join(rule_lines()))


def _rules() -> Iterator[dict[str, Any]]:
    from meshwright.data.clean.catalogue import THRESHOLDS, listed_rules

    for rule in listed_rules():
        yield {**asdict(rule), "thresholds": {name: THRESHOLDS[name].default for name in rule.thresholds}}


def rule_lines() -> Iterator[str]:
    """Every rule: its name, its thresholds with their defaults, what it measures, its source."""
    from meshwright.data.clean.catalogue import THRESHOLDS, listed_rules

    rows = [("RULE", "THRESHOLD (PUBLISHED)", "DROPS", "BY", "SOURCE")]
    for rule in listed_rules():
        names = ", ".join(f"{name}={THRESHOLDS[name].default:g}" for name in rule.thresholds)
        rows.append((rule.name, names or "-", rule.drops, rule.about, rule.source))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield "Thresholds named min_ drop what is below them, those named max_ what is above. Shares are from 0 to 1."
