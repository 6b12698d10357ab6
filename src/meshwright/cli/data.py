"""``meshwright data``: prepare a corpus, import one, look into one."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from meshwright.cli import data_import, data_inspect, data_rules


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
    _add_cleaning(parser.add_argument_group("cleaning (needs meshwright[clean])"))
    cores = min(os.cpu_count() or 1, 16)
    parser.add_argument("--workers", type=int, default=cores, metavar="N", help=f"processes ({cores})")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing corpus")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_cleaning(group: Any) -> None:
    group.add_argument(
        "--clean", type=_names, default=(), metavar="RULES", help="rule sets, in order: gopher,c4,c4-fineweb,fineweb"
    )
    group.add_argument("--language", type=_names, default=(), metavar="CODES", help="keep these languages: en,de")
    group.add_argument("--repair-unicode", action="store_true", help="undo wrong decodings")
    group.add_argument("--mask-pii", action="store_true", help="replace e-mail and public IP addresses")
    group.add_argument("--examples", type=int, default=3, metavar="N", help="dropped documents to show by rule (3)")
    data_rules.add_arguments(group)


def _names(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


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
    if args.action == "prepare" and (kept := _kept_shards(args.output)):
        print(f"finished shards of cleaning are in {kept}; the same command goes on from there", file=sys.stderr)
    return code


def _kept_shards(output: str) -> Path | None:
    from meshwright.data.clean.shards import DIRECTORY
    from meshwright.data.workplace import workplace_path

    return next(workplace_path(Path(output)).glob(f"{DIRECTORY}*"), None)


def _prepare(args: argparse.Namespace) -> None:
    from meshwright.data.clean.catalogue import parse_thresholds
    from meshwright.data.clean.cleaner import Cleaning
    from meshwright.data.prepare import prepare

    cleaning = Cleaning(
        repair_unicode=args.repair_unicode,
        languages=args.language,
        rule_sets=args.clean,
        mask_pii=args.mask_pii,
        thresholds=parse_thresholds(args.threshold),
    )
    record = prepare(
        args.inputs,
        args.output,
        tokenizer=args.tokenizer,
        train_vocab_size=args.train_tokenizer,
        suffixes=args.suffix,
        text_key=args.text_key,
        eos_token=args.eos_token,
        eval_fraction=args.eval_fraction,
        cleaning=cleaning,
        examples=args.examples,
        workers=args.workers,
        overwrite=args.overwrite,
        show_progress=True,
    )
    if args.json:
        print(json.dumps({"output": args.output, **record.as_json()}, indent=2))
        return
    if cleaning:
        _print_cleaning(args.output)
    for name, split in (("train", record.train), ("held out", record.eval)):
        print(f"{name}: {split.documents} documents, {split.tokens} tokens, {split.utf8_bytes} bytes of text")
    print(f"dropped: {record.dropped['empty']} empty; with invalid UTF-8, repaired: {record.invalid_utf8}")
    print(f"vocabulary: {record.vocab_size} ({record.dtype}), end of text {record.eos_token} = {record.eos_id}")
    if args.train_tokenizer and record.vocab_size < args.train_tokenizer:
        print(f"note: the text has too few pairs to merge for a vocabulary of {args.train_tokenizer}")
    if args.eval_fraction > 0 and not record.eval.documents:
        print("note: too few documents to hold any out; there is no held-out split")
    print(f"wrote {args.output}.bin .idx .tokenizer.json .json{' .clean.json' if cleaning else ''}")


def _print_cleaning(output: str) -> None:
    from meshwright.data.clean.report import REPORT_SUFFIX
    from meshwright.data.indexed import strip_suffix

    report = json.loads(Path(f"{strip_suffix(output)}{REPORT_SUFFIX}").read_text(encoding="utf-8"))
    read, kept = report["read"], report["kept"]
    print(f"cleaning: {read['documents']} documents of {read['characters']} characters read")
    print(f"  kept    {kept['documents']:<8} of {kept['characters']} characters, {report['edited']} edited")
    for rule, dropped in report["dropped"].items():
        example = "".join(f"  {example['text'][:40]!r}" for example in dropped["examples"][:1])
        print(f"  dropped {dropped['documents']:<8} {rule:<36}{example}")
