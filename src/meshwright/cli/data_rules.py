"""``--threshold`` and ``--list-rules`` of ``meshwright data prepare``."""

import argparse
from collections.abc import Iterator
from typing import Any


def add_arguments(group: Any) -> None:
    """Declare the options."""
    group.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="compare with this in place of what is published: gopher.min_words=30 (may be repeated)",
    )
    group.add_argument("--list-rules", action=_ListRules, nargs=0, help="print all rules and thresholds, and exit")


class _ListRules(argparse.Action):
    """Like ``--help``: needs no other argument."""

    def __call__(self, parser: argparse.ArgumentParser, *ignored: Any) -> None:
        print("\n".join(rule_lines()))
        parser.exit()


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
