"""``meshwright data prepare``."""

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.cli import data_report, data_rules
from meshwright.config.corpus_flags import FLAGS, ONLY_FLAGS, flag_of, number
from meshwright.launch.cores import usable_cores

if TYPE_CHECKING:
    from meshwright.config.corpus import CorpusConfig
    from meshwright.data.preparation.request import Request

CONFIG_SUFFIXES = (".yaml", ".yml")
KINDS = ("exact", "near")
MOST_WORKERS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; those that a config file can give have its keys as names, and no default."""
    inputs = parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="file, directory, saved dataset or pattern, or only CONFIG.yaml"
    )
    # Its absence is told with all other mistakes, and --list-rules needs none.
    inputs.required = False
    parser.add_argument("--output", metavar="PREFIX", help="path of the corpus, without suffix")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json, sentencepiece or tiktoken file")
    source.add_argument(
        "--train-tokenizer", type=number, metavar="VOCAB_SIZE", help="train a byte-level BPE of this size"
    )
    parser.add_argument(
        "--suffix",
        dest="suffixes",
        action="extend",
        type=_names,
        metavar="SUFFIXES",
        help="take these files from directories: .py,.md (default: known text)",
    )
    parser.add_argument("--text-key", metavar="KEY", help="key of the text in rows (text)")
    parser.add_argument("--tiktoken", metavar="NAME", help="how a tiktoken file is used: gpt2,cl100k,o200k,llama3,qwen")
    parser.add_argument("--eos-token", metavar="TOKEN", help="ends each document (default: the tokenizer's)")
    parser.add_argument("--eval-fraction", type=number, metavar="X", help="share of documents to hold out (0.02)")
    _add_cleaning(parser.add_argument_group("cleaning (needs meshwright[clean])"))
    _add_deduplication(parser.add_argument_group("deduplication (near needs meshwright[clean])"))
    parser.add_argument("--workers", type=number, metavar="N", help=f"processes ({_cores()})")
    parser.add_argument("--task", metavar="K/N", help="do one of N shares of the next stage, beside other tasks")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing corpus")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    data_report.add_arguments(parser)
    parser.epilog = _epilog()


def _epilog() -> str:
    """The keys of a config file whose names their options do not tell."""
    flags = {key: flag_of(key) for key in FLAGS}
    keys = ", ".join(f"{flag} is {key}" for key, flag in flags.items() if flag != f"--{key.replace('_', '-')}")
    return (
        f"In CONFIG.yaml an option has its own name (--text-key is text_key), but: {keys}. Only on the command line: "
        f"{', '.join(ONLY_FLAGS.values())}."
    )


def _cores() -> int:
    return min(usable_cores(), MOST_WORKERS)


def _add_cleaning(group: Any) -> None:
    group.add_argument(
        "--clean",
        dest="clean.rules",
        type=_names,
        metavar="RULES",
        help="rule sets, in order: gopher,c4,c4-fineweb,fineweb",
    )
    group.add_argument(
        "--language", dest="clean.languages", type=_names, metavar="CODES", help="keep these languages: en,de"
    )
    group.add_argument(
        "--repair-unicode",
        dest="clean.repair_unicode",
        action="store_const",
        const=True,
        help="undo wrong decodings",
    )
    group.add_argument(
        "--mask-pii",
        dest="clean.mask_pii",
        action="store_const",
        const=True,
        help="replace e-mail and public IP addresses",
    )
    group.add_argument("--examples", type=number, metavar="N", help="dropped documents to show by rule (3)")
    data_rules.add_arguments(group)


def _add_deduplication(group: Any) -> None:
    group.add_argument(
        "--deduplicate", type=_names, metavar="KINDS", help="drop documents that repeat others: exact,near"
    )
    group.add_argument(
        "--against",
        dest="deduplicate.against",
        action="extend",
        nargs="+",
        metavar="PREFIX",
        help="drop what these corpora have, prepared like this one; stands after the inputs",
    )
    for name, what in (
        ("ngram", "words that must be the same in a row (5)"),
        ("bands", "chances to find a near duplicate (14)"),
        ("rows", "hash values to agree in each chance (8)"),
    ):
        group.add_argument(f"--{name}", dest=f"deduplicate.{name}", type=number, metavar="N", help=what)


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("it names nothing; leave the option out, or give names with commas between")
    return names


def run(args: argparse.Namespace) -> None:
    """Prepare a corpus, or do the share of a task.

    Raises:
        DataError: the request or an input is wrong.
        DataWorkerError, OSError: the work failed.
    """
    from meshwright.data.preparation.prepare import prepare_corpus, prepare_task
    from meshwright.data.preparation.request import Request
    from meshwright.data.preparation.stages import Task

    if args.list_rules:
        data_rules.print_rules(args.json)
        return
    config = _config(args)
    request = Request.of(config)
    if args.html is not None:
        _check_page(args, request)
    workers = _cores() if config.workers is None else config.workers
    options = {"workers": workers, "overwrite": args.overwrite, "show_progress": True}
    if args.task is not None:
        task = Task.parse(args.task)
        data_report.print_task(task, prepare_task(request, task, **options), args.json)
        return
    seconds: dict[str, float] = {}
    record = prepare_corpus(request, **options, seconds=seconds)
    report = {**data_report.load_report(request.prefix), "seconds": seconds}
    if args.html is not None:
        data_report.write_page(report, args.html)
    data_report.print_corpus(request, record, report, args.json)


def _check_page(args: argparse.Namespace, request: "Request") -> None:
    from meshwright.data.corpus import find_files
    from meshwright.data.errors import DataError

    if args.task is not None:
        raise DataError("--html shows a complete corpus; leave it to the command without --task")
    data_report.check_page(args.html, request.prefix, read=find_files(request.inputs, request.suffixes))


def _config(args: argparse.Namespace) -> "CorpusConfig":
    """What the config file, if any, and the options ask for."""
    from meshwright.config.corpus import CorpusConfig, load_corpus_config
    from meshwright.config.keys import keys
    from meshwright.data.clean.catalogue import parse_thresholds
    from meshwright.data.errors import DataError

    known = keys(CorpusConfig)
    given = {name: value for name, value in vars(args).items() if name in known and value is not None}
    if args.threshold:
        given["clean.thresholds"] = parse_thresholds(args.threshold)
    if (kinds := given.pop("deduplicate", None)) is not None:
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise DataError(f"--deduplicate {unknown[0]!r} is not known; known are {', '.join(KINDS)}")
        given |= {f"deduplicate.{kind}": kind in kinds for kind in KINDS}
    if not args.inputs and "deduplicate.against" in given:
        raise DataError("INPUT is missing; put inputs before --against, which takes all that follows it")
    files = [item for item in args.inputs or () if item.endswith(CONFIG_SUFFIXES)]
    if files and len(args.inputs) > 1:
        raise DataError(f"{files[0]}: a config file stands alone; put all inputs into it")
    if files:
        del given["inputs"]
    return load_corpus_config(Path(files[0]) if files else None, given, _mistakes)


def _mistakes(config: "CorpusConfig", given: Collection[str]) -> Iterator[tuple[str, str]]:
    from meshwright.data.preparation.request import Request

    return Request.of(config).mistakes(given)
