"""What ``meshwright data prepare`` tells of a corpus that it has made: a table, and a page."""

import argparse
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.cli.outputs import unwritable

if TYPE_CHECKING:
    from meshwright.data.preparation.prepare import TaskReport
    from meshwright.data.preparation.request import Request
    from meshwright.data.preparation.stages import Task
    from meshwright.data.record import CorpusRecord

EXAMPLE_CHARACTERS = 40
# Holds the style sheet of a page and what tells its kind.
START_CHARACTERS = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page: what was dropped and why, with examples"
    )


def check_page(path: Path, prefix: Path, *, read: Collection[Path] = ()) -> None:
    """Refuse a page that could not be written, or that would take the place of anything but a page, before the work.

    Args:
        prefix: of the corpus that the page is about.
        read: files that the work reads.

    Raises:
        DataError: with the reason.
    """
    from meshwright.data.errors import DataError

    if reason := _in_the_way(path, prefix, read):
        raise DataError(f"--html {path}: {reason}")


def _in_the_way(path: Path, prefix: Path, read: Collection[Path]) -> str | None:
    from meshwright.data.preparation.outputs import output_files
    from meshwright.report.data_html import is_data_page

    place = os.path.realpath(path)
    if str(path) == "-":
        return "a page is written to a file; give its name"
    if place in map(os.path.realpath, output_files(prefix)):
        return f"is a file of the corpus {prefix}; choose another name"
    if place in map(os.path.realpath, read):
        return "is an input; choose another name"
    # The folder of the corpus is made by the work.
    if os.path.dirname(place) == os.path.dirname(os.path.realpath(prefix)) and not path.parent.exists():
        return None
    if reason := unwritable(path):
        return reason
    # What is no file, such as a pipe, is not read: that could wait forever.
    if path.exists() and not (path.is_file() and is_data_page(_start(path))):
        return "exists already and is no page of this command; choose another name"
    return None


def _start(path: Path) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(START_CHARACTERS)


def write_page(report: Mapping[str, Any], path: Path) -> None:
    """Write the page of a report.

    Raises:
        OSError: it cannot be written.
    """
    from meshwright.data.progress import tell
    from meshwright.report.data_html import data_page

    path.write_text(data_page(report), encoding="utf-8")
    tell(f"wrote {path}")


def load_report(prefix: Path) -> dict[str, Any]:
    """The report of a corpus.

    Raises:
        DataError: it has none.
    """
    from meshwright.data.errors import DataError
    from meshwright.data.preparation.report import FORMAT, REPORT_SUFFIX

    path = Path(f"{prefix}{REPORT_SUFFIX}")
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if report.get("format") != FORMAT:
            raise ValueError(f"not {FORMAT}")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; `meshwright data prepare` writes it") from None
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read as a report: {error}") from None
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
    from meshwright.report.data_html import STEPS

    for step, amount in report["flow"].items():
        if step == "cleaning":
            for rule, dropped in report["cleaning"]["dropped"].items():
                yield rule, dropped, "".join(one["text"][:EXAMPLE_CHARACTERS] for one in dropped["examples"][:1])
        elif step in STEPS and (amount["documents"] or amount["characters"]):
            yield STEPS[step], amount, ""


def print_task(task: "Task", report: "TaskReport", as_json: bool) -> None:
    """Print what a task has done and what comes next."""
    if as_json:
        print(json.dumps({"task": str(task), **asdict(report)}, indent=2))
        return
    if report.stage:
        print(f"{report.stage}: task {task} is done; {report.finished} of {report.shards} shards are finished")
    if report.stage and report.finished < report.shards:
        print("next: wait for the other tasks")
    elif report.following:
        print(f"next: run all tasks again, for {report.following}")
    else:
        print("next: run the command without --task; it does the rest")


def print_corpus(request: "Request", record: "CorpusRecord", report: dict[str, Any], as_json: bool) -> None:
    """Print what a corpus has become."""
    from meshwright.data.record import tokenizer_path

    output = request.prefix
    if as_json:
        print(json.dumps({"output": str(output), **record.as_json(), "report": report}, indent=2))
        return
    for line in flow_lines(report):
        print(line)
    for name, split in (("train", record.train), ("held out", record.eval)):
        print(f"{name}: {split.documents} documents, {split.tokens} tokens, {split.utf8_bytes} bytes of text")
    too_long = f", {record.dropped['too_long']} too long" if record.dropped["too_long"] else ""
    print(f"dropped: {record.dropped['empty']} empty{too_long}; with invalid UTF-8, repaired: {record.invalid_utf8}")
    for note in report["notes"]:
        print(f"note: {note}")
    print(f"vocabulary: {record.vocab_size} ({record.dtype}), end of text {record.eos_token} = {record.eos_id}")
    if request.train_vocab_size and record.vocab_size < request.train_vocab_size:
        print(f"note: the text has too few pairs to merge for a vocabulary of {request.train_vocab_size}")
    if request.eval_fraction > 0 and not record.eval.documents:
        print("note: too few documents to hold any out; there is no held-out split")
    print(f"wrote {output}.bin .idx .tokenizer{tokenizer_path(output).suffix} .json .report.json")
