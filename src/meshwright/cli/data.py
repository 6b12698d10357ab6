"""``meshwright data``: prepare a corpus, import one, look into one."""

import argparse
import json
import os
import sys
from typing import Any

from meshwright.cli import data_import, data_inspect


def add_parser(subparsers: Any) -> None:
    """Add the verb and its actions."""
    parser = subparsers.add_parser("data", help="prepare or import a training corpus, or look into one")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_prepare(actions.add_parser("prepare", help="turn text into token files"))
    data_import.add_arguments(actions.add_parser("import", help="turn MindRecord files into token files"))
    data_inspect.add_arguments(
        actions.add_parser(
            "inspect", help="sizes, documents, duplicates, how often ids occur, and a sample of a corpus"
        )
    )


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="file, directory or glob pattern")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="path of the corpus, without suffix")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json to use")
    source.add_argument("--train-tokenizer", type=int, metavar="VOCAB_SIZE", help="train a byte-level BPE of this size")
    parser.add_argument(
        "--suffix", action="append", default=[], help="take these files from directories (default .txt .jsonl)"
    )
    parser.add_argument("--text-key", default="text", metavar="KEY", help="key of the text in .jsonl rows")
    parser.add_argument("--eos-token", metavar="TOKEN", help="ends each document (default: the tokenizer's)")
    parser.add_argument(
        "--eval-fraction", type=float, default=0.02, metavar="X", help="share of documents to hold out (0.02)"
    )
    cores = min(os.cpu_count() or 1, 16)
    parser.add_argument("--workers", type=int, default=cores, metavar="N", help=f"processes ({cores})")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing corpus")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """0 done, 1 the work failed, 2 the request or an input was wrong, 130 interrupted."""
    from meshwright.data.errors import DataError, DataWorkerError

    action = {"prepare": _prepare, "import": data_import.run, "inspect": data_inspect.run}[args.action]
    try:
        action(args)
    except DataError as error:
        return _fail(args, str(error), 2)
    except (DataWorkerError, OSError) as error:
        return _fail(args, str(error), 1)
    except KeyboardInterrupt:
        return _fail(args, "interrupted; nothing was written", 130)
    return 0


def _fail(args: argparse.Namespace, message: str, code: int) -> int:
    print(f"meshwright data {args.action}: {message}", file=sys.stderr)
    return code


def _prepare(args: argparse.Namespace) -> None:
    from meshwright.data.prepare import prepare

    record = prepare(
        args.inputs,
        args.output,
        tokenizer=args.tokenizer,
        train_vocab_size=args.train_tokenizer,
        suffixes=args.suffix,
        text_key=args.text_key,
        eos_token=args.eos_token,
        eval_fraction=args.eval_fraction,
        workers=args.workers,
        overwrite=args.overwrite,
        show_progress=True,
    )
    if args.json:
        print(json.dumps({"output": args.output, **record.as_json()}, indent=2))
        return
    for name, split in (("train", record.train), ("held out", record.eval)):
        print(f"{name}: {split.documents} documents, {split.tokens} tokens, {split.utf8_bytes} bytes of text")
    dropped = ", ".join(f"{count} {reason}" for reason, count in record.dropped.items())
    print(f"dropped: {dropped}; with invalid UTF-8, repaired: {record.invalid_utf8}")
    print(f"vocabulary: {record.vocab_size} ({record.dtype}), end of text {record.eos_token} = {record.eos_id}")
    if args.train_tokenizer and record.vocab_size < args.train_tokenizer:
        print(f"note: the text has too few pairs to merge for a vocabulary of {args.train_tokenizer}")
    if args.eval_fraction > 0 and not record.eval.documents:
        print("note: too few documents to hold any out; there is no held-out split")
    print(f"wrote {args.output}.bin .idx .tokenizer.json .json")
