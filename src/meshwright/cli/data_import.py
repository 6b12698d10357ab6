"""``meshwright data import``: MindRecord files to token files."""

import argparse
import json
from dataclasses import asdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the action."""
    parser.add_argument("source", metavar="SRC", help="MindRecord file; one of a sharded set stands for all of them")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="path of the corpus, without suffix")
    vocabulary = parser.add_mutually_exclusive_group(required=True)
    vocabulary.add_argument("--vocab-size", type=int, metavar="N", help="ids are below N")
    vocabulary.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json that made the ids; it is copied")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="COLUMN", help="leave out a column that training would need"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> None:
    """Import and say what became of each column. Raises DataError."""
    from meshwright.data.mindrecord_import import import_mindrecord

    report = import_mindrecord(
        args.source,
        args.output,
        vocab_size=args.vocab_size,
        tokenizer=args.tokenizer,
        ignore=args.ignore,
        show_progress=True,
    )
    if args.json:
        print(json.dumps(asdict(report), indent=2))
        return
    print(f"read {', '.join(report.files)}")
    print(f"{report.documents} rows as documents, {report.tokens} tokens ({report.dtype})")
    for name, outcome in report.columns.items():
        print(f"  column {name}: {outcome}")
    print(f"wrote {report.output}.bin .idx{' .tokenizer.json' if args.tokenizer else ''}")
