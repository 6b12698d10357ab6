"""Files that ``meshwright dryrun`` writes besides what it prints: a page, and snapshots for PyTorch's memory viewer."""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.outputs import unwritable

if TYPE_CHECKING:
    from meshwright.dryrun.findings import Findings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page: memory over the step, what fills it")
    parser.add_argument(
        "--snapshot",
        type=Path,
        metavar="FILE",
        help="write the step for PyTorch's memory viewer; with --all-stages one file for each: FILE with -stage0,"
        " -stage1 ... before its suffix",
    )


def check(args: argparse.Namespace) -> None:
    """Raise `ValueError` before the run where a file could not be written after it."""
    for option, path in (("--html", args.html), ("--snapshot", args.snapshot)):
        if path is not None and (reason := unwritable(path)):
            raise ValueError(f"{option} {path}: {reason}")
    if args.snapshot and args.fast:
        raise ValueError("--snapshot needs the whole step; --fast runs small ones and extrapolates: leave it out")
    if args.snapshot and args.target == "cpu":
        raise ValueError("--snapshot shows blocks of the caching allocator of CUDA devices; a CPU has none")


def write(findings: "Findings", args: argparse.Namespace) -> None:
    """Write what was asked for. Raises `ValueError` where that fails after all."""
    for path, put in _files(findings, args):
        try:
            put()
        except OSError as error:
            raise ValueError(f"{path}: cannot be written ({error.strerror})") from None
        print(f"wrote {path}", file=sys.stderr)


def _files(findings: "Findings", args: argparse.Namespace) -> Iterator[tuple[Path, Callable[[], object]]]:
    if args.html:
        from meshwright.report.dryrun_html import dryrun_page

        yield args.html, partial(args.html.write_text, dryrun_page(findings), encoding="utf-8")
    if args.snapshot:
        from meshwright.dryrun.snapshot import write_snapshot

        for found in findings.ranks:
            assert found.result.execution is not None
            stage = f"-stage{found.result.at.pipeline}" if args.all_stages else ""
            path = args.snapshot.with_name(f"{args.snapshot.stem}{stage}{args.snapshot.suffix}")
            yield path, partial(write_snapshot, found.result.execution.tape, path)
