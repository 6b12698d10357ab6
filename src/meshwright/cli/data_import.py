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
    vocabulary.add_argument("--tokenizer", metavar="FILE", help="vocabulary that made the ids; it is copied")
    parser.add_argument("--tiktoken", metavar="NAME", help="how a tiktoken file is used: gpt2,cl100k,o200k,llama3,qwen")
    parser.add_argument("--eos-token", metavar="TOKEN", help="ends each text (default: the tokenizer's)")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="COLUMN", help="leave out a column that training would need"
    )
    parser.add_argument(
        "--labels",
        choices=("in-place", "ahead"),
        help="labels are the ids in their places, or those that follow (told by the rows), or other ids that stand so",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> None:
    """Import and say what became of each column. Raises DataError."""
    from meshwright.data.mindrecord.convert import import_mindrecord
    from meshwright.data.vocabulary.beside import CONFIG_SUFFIX

    report = import_mindrecord(
        args.source,
        args.output,
        vocab_size=args.vocab_size,
        tokenizer=args.tokenizer,
        eos_token=args.eos_token,
        tiktoken_encoding=args.tiktoken,
        ignore=args.ignore,
        ahead=None if args.labels is None else args.labels == "ahead",
        show_progress=True,
    )
    if args.json:
        print(json.dumps(asdict(report), indent=2))
        return
    print(f"read {', '.join(report.files)}")
    print(f"{report.rows} rows as {report.documents} documents, {report.tokens} tokens ({report.dtype})")
    if report.supervised_tokens is not None:
        share = report.supervised_tokens / report.tokens
        print(f"{report.supervised_tokens} of the tokens ({share:.1%}) are supervised")
    if report.empty_rows:
        kind = "without a supervised token" if report.beside else "of nothing but padding"
        print(f"left out: {report.empty_rows} rows {kind}")
    if report.left_out_ids:
        unsupervised = ", or behind the last supervised one of their document" if report.beside else ""
        print(f"left out: {report.left_out_ids} ids of padding{unsupervised}")
    if report.crossing_labels:
        print(f"left out: {report.crossing_labels} labels that are the first token of another document than theirs")
    for name, outcome in report.columns.items():
        print(f"  column {name}: {outcome}")
    tokenizer = (report.tokenizer, CONFIG_SUFFIX) if report.tokenizer else ()
    files = [".bin", ".idx", *filter(None, (report.beside, *tokenizer))]
    print(f"wrote {report.output}{' '.join(files)}")
