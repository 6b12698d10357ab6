"""``meshwright data``: prepare a corpus, import one, look into one."""

import argparse
from collections.abc import Sequence
from typing import Any

from meshwright.cli import data_import, data_inspect, data_prepare

NOTHING_WRITTEN = "no corpus file was written"


def add_parser(subparsers: Any) -> None:
    """Add the verb and its actions."""
    parser = subparsers.add_parser("data", help="prepare or import a training corpus, or look into one")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    data_prepare.add_arguments(actions.add_parser("prepare", help="turn text into token files"))
    data_import.add_arguments(actions.add_parser("import", help="turn MindRecord files into token files"))
    data_inspect.add_arguments(
        actions.add_parser(
            "inspect", help="sizes, documents, duplicates, how often ids occur, and a sample of a corpus"
        )
    )


def run(args: argparse.Namespace) -> int:
    """0 done, 1 the work failed, 2 the request or an input was wrong, 130 interrupted."""
    from meshwright.config.errors import ConfigErrors
    from meshwright.data.errors import DataError, DataWorkerError

    action = {"prepare": data_prepare.run, "import": data_import.run, "inspect": data_inspect.run}[args.action]
    try:
        action(args)
    except (DataError, ConfigErrors) as error:
        return _fail(args, str(error), 2)
    except DataWorkerError as error:
        return _fail(args, str(error), 1, _notes(error))
    except BrokenPipeError:
        # The reader of the output (head, less) has gone: no failure of the work.
        raise
    except OSError as error:
        return _fail(args, f"{error.filename}: {error.strerror}" if error.filename else str(error), 1, _notes(error))
    except KeyboardInterrupt as interrupt:
        # An interrupt that was put off until all files were written says so.
        return _fail(args, "; ".join(["interrupted", str(interrupt) or NOTHING_WRITTEN, *_notes(interrupt)]), 130)
    return 0


def _notes(error: BaseException) -> list[str]:
    """What was added to an error on its way."""
    return getattr(error, "__notes__", [])


def _fail(args: argparse.Namespace, message: str, code: int, before: Sequence[str] = ()) -> int:
    from meshwright.data.progress import tell

    for line in before:
        tell(line)
    tell(f"meshwright data {args.action}: {message}")
    return code
