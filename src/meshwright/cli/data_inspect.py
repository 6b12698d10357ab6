"""``meshwright data inspect``: what is in token files, or in MindRecord files before they are imported."""

import argparse
import json
from pathlib import Path
from typing import Any

from meshwright.cli import data_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the action."""
    parser.add_argument("prefix", metavar="PREFIX", help="corpus without .bin or .idx, or a MindRecord file")
    parser.add_argument("--eos-token", metavar="TOKEN", help="ends each text (default: the record's or tokenizer's)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the result as JSON")
    form.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="instead write the page of `data prepare --html`, from PREFIX.report.json",
    )


def run(args: argparse.Namespace) -> None:
    """Print the report. Raises DataError."""
    from meshwright.data.errors import DataError
    from meshwright.data.indexed_format import idx_path, strip_suffix
    from meshwright.data.inspect import inspect_corpus
    from meshwright.data.mindrecord.inspect import inspect_mindrecord

    prefix = strip_suffix(args.prefix)
    if prefix.is_dir() and not idx_path(prefix).exists():
        raise DataError(f"{prefix}: is a folder; {_prefixes(prefix)}")
    if args.html is not None:
        data_report.check_page(args.html, prefix)
        data_report.write_page(data_report.load_report(prefix), args.html)
        return
    mindrecord = _is_mindrecord(args.prefix)
    if mindrecord and args.eos_token is not None:
        raise DataError(f"{args.prefix}: --eos-token is for token files, and this is a MindRecord file")
    if mindrecord:
        report = inspect_mindrecord(args.prefix)
    else:
        report = inspect_corpus(args.prefix, eos_token=args.eos_token, show_progress=True)
    if args.json:
        print(json.dumps(report, indent=2))
    elif mindrecord:
        _print_mindrecord(report)
    else:
        _print_corpus(report)


def _is_mindrecord(given: str) -> bool:
    """Whether it is, rather than a corpus. Raises DataError where it is a file of another kind."""
    from meshwright.data.errors import DataError
    from meshwright.data.indexed_format import idx_path, strip_suffix
    from meshwright.data.mindrecord.files import is_mindrecord

    prefix = strip_suffix(given)
    if idx_path(prefix).exists():
        return False
    mindrecord = is_mindrecord(given)
    if not mindrecord and prefix.is_file():
        raise DataError(f"{prefix}: neither a MindRecord file nor a corpus, which is named without .bin and .idx")
    return mindrecord


def _prefixes(folder: Path) -> str:
    """The corpora of a folder, to choose from; a held-out split is shown with its own."""
    found = [path.with_suffix("") for path in sorted(folder.glob("*.idx"))]
    names = [str(prefix) for prefix in found if prefix.suffix != ".eval" or prefix.with_suffix("") not in found]
    return f"its corpora are {', '.join(names)}" if names else "it has no corpus"


def _print_mindrecord(report: dict[str, Any]) -> None:
    for file in report["files"]:
        print(f"{file['path']}: MindRecord 3.0, {file['rows']} rows, {file['bytes']} B")
    for name, kind in report["columns"].items():
        first = f", first row: {report['first_row'][name]}" if report["first_row"] else ""
        print(f"  column {name}: {kind}{first}")


def _print_corpus(report: dict[str, Any]) -> None:
    for split in report["splits"]:
        print(f"{split['prefix']}: {split['dtype']}, .bin {split['bin_bytes']} B, .idx {split['idx_bytes']} B")
        print(f"  {split['documents']} documents, {split['tokens']} tokens")
        lengths = f"{split['shortest']} to {split['longest']}, median {split['median']:.0f}, mean {split['mean']:.1f}"
        print(f"  document length in tokens: {lengths}")
        if found := split["supervision"]:
            name = "labels" if split["beside"] == ".labels" else "loss mask"
            print(f"  {name}: {_supervision(found, split['tokens'])}")
        print(f"  duplicates: {_duplicates(split['duplicates'])}")
        if split["tokens"]:
            _print_histogram(split)
            _print_sample(split["sample"])
    if record := report["record"]:
        print(f"vocabulary {record['vocab_size']}, end of text {record['eos_token']} = {record['eos_id']}")


def _supervision(found: dict[str, Any], tokens: int) -> str:
    share = f" ({found['tokens'] / tokens:.1%})" if tokens else ""
    return f"{found['tokens']} tokens are supervised{share}; {found['documents_without']} documents have none"


def _duplicates(found: dict[str, Any]) -> str:
    text = f"{found['documents']} documents repeat an earlier one"
    if found["most_repeated"] is not None:
        text += f", document {found['most_repeated']} is there {found['times']} times"
    if found["also_in_train"] is not None:
        text += f"; {found['also_in_train']} are in the training split too"
    return text


def _print_histogram(split: dict[str, Any]) -> None:
    histogram, shares = split["histogram"], split["histogram"]["ids_for_share"]
    of = f" of {histogram['vocab_size']}" if histogram["vocab_size"] else ""
    made = ", ".join(f"{count} make {share}" for share, count in shares.items())
    print(f"  ids: {histogram['used']}{of} occur; of all tokens the most frequent {made}")
    print(
        "  ids by how often: " + ", ".join(f"{ids} ids {times} times" for times, ids in histogram["by_count"].items())
    )
    for entry in split["most_frequent"]:
        text = "" if entry["text"] is None else f"  {entry['text']!r}"
        print(f"    id {entry['id']:<7}{entry['share']:6.1%}  {entry['count']:>8}{text}")
    if outside := histogram["outside"]:
        print(f"  WRONG: {outside} tokens are {_outside(histogram)}, first token {histogram['first_outside']}")


def _outside(histogram: dict[str, Any]) -> str:
    size = histogram["vocab_size"]
    return f"outside the vocabulary of {size}" if size else "ids that no vocabulary has"


def _print_sample(runs: list[dict[str, Any]]) -> None:
    print("  sample, as training reads it:")
    before = runs[0]
    for run in runs:
        if run["document"] != before["document"]:
            print("    ---- border of documents ----")
        elif run["first_token"] > before["first_token"] + len(before["ids"]):
            print("    ...")
        shown = repr(run["text"]) if run["text"] is not None else str(run["ids"])
        if run["labels"] is not None:
            shown += f" with labels {run['labels'] if run['labels_text'] is None else repr(run['labels_text'])}"
        first, last = run["first_token"], run["first_token"] + len(run["ids"]) - 1
        tokens = f"tokens {first} to {last}" if last > first else f"token {first}"
        loss = "in the loss" if run["supervised"] else "not in the loss"
        print(f"    document {run['document']}, {tokens}, {loss}: {shown}")
        before = run
