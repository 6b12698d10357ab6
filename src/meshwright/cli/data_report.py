"""What ``meshwright data prepare`` tells of a corpus that it has made: a table, and a page."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.cli.outputs import unwritable

WORDS = {"editing": "edited away", "exact_duplicates": "exact duplicates", "near_duplicates": "near duplicates"}
EXAMPLE_CHARACTERS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page: what was dropped and why, with examples"
    )


def check(args: argparse.Namespace) -> None:
    """Refuse a page that could not be written, before the work.

    Raises:
        DataError: with the reason.
    """
    from meshwright.data.errors import DataError

    if args.html is not None and args.task:
        raise DataError("--html shows a complete corpus; leave it to the command without --task")
    if args.html is not None and (reason := unwritable(args.html)):
        raise DataError(f"--html {args.html}: {reason}")


def write_page(report: Mapping[str, Any], path: Path | None) -> None:
    """Write the page of a report, where one was asked for.

    Raises:
        OSError: it cannot be written.
    """
    if path is not None:
        from meshwright.report.data_html import data_page

        path.write_text(data_page(report), encoding="utf-8")
        print(f"wrote {path}", file=sys.stderr)


def load_report(prefix: Path) -> dict[str, Any]:
    """The report of a corpus."""
    from meshwright.data.preparation.report import REPORT_SUFFIX

    report: dict[str, Any] = json.loads(Path(f"{prefix}{REPORT_SUFFIX}").read_text(encoding="utf-8"))
    return report


def flow_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What was read, taken away by each rule and step, and kept; nothing where no step takes anything away."""
    flow = report["flow"]
    if flow.keys() <= {"empty", "too_long", "read", "kept"}:
        return
    rows = [("read", flow["read"], ""), *_taken(report), ("kept", flow["kept"], "")]
    width = max(len(name) for name, _, _ in rows)
    yield f"{'':{width}}  {'documents':>10}  {'characters':>12}  {'tokens':>12}"
    for name, amount, example in rows:
        tokens = f"{'~' if amount.get('estimated', True) else ''}{amount['tokens']}"
        counts = f"{amount['documents'] or '':>10}  {amount['characters']:>12}  {tokens:>12}"
        yield f"{name:{width}}  {counts}{f'  {example!r}' if example else ''}"


def _taken(report: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    for step, amount in report["flow"].items():
        if step == "cleaning":
            for rule, dropped in report["cleaning"]["dropped"].items():
                yield rule, dropped, "".join(one["text"][:EXAMPLE_CHARACTERS] for one in dropped["examples"][:1])
        elif step in WORDS and (amount["documents"] or amount["characters"]):
            yield WORDS[step], amount, ""
