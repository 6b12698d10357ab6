"""The ``meshwright`` command: finds the verb, lets its module parse the rest, turns mistakes into exit codes.

Exit codes: 0 done, 1 the work failed, 2 the request was wrong. Verb modules are imported only when they run, so
that help and typing mistakes answer at once.
"""

import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright import __version__
from meshwright.cli.parser import Parser

OVERRIDE = re.compile(r"(?:--)?[A-Za-z_]\w*(?:\.\w+)+=|[A-Za-z_]\w*=|--(?:seed|output_dir|run_mode)=")
# Options of verbs whose value looks like an override but is none.
KEY_VALUE_OPTIONS = ("--fix",)
OPTION = re.compile(r"--(?:[A-Za-z_]\w*(?:\.\w+)+|seed|output_dir|run_mode)\Z")


@dataclass(frozen=True)
class Verb:
    """One verb: the module with its ``add_parser(subparsers)`` and ``run(args) -> int``, and a line of help.

    Attributes:
        overrides: whether ``key.path=value`` arguments are config overrides; they arrive as ``args.overrides``.
    """

    module: str
    help: str
    overrides: bool = False


VERBS = {
    "plan": Verb("meshwright.cli.plan", "rank the layouts that fit, with memory, time and reasons", overrides=True),
    "train": Verb("meshwright.cli.train", "train the model that a config describes", overrides=True),
    "eval": Verb("meshwright.cli.eval", "held-out loss, perplexity and bits per byte", overrides=True),
    "generate": Verb("meshwright.cli.generate", "continue a prompt from any checkpoint"),
    "bench": Verb("meshwright.cli.bench", "measure this machine for the planner"),
    "dryrun": Verb(
        "meshwright.cli.dryrun", "run the step of any rank without devices: will it fit, what fills it", overrides=True
    ),
    "checkpoint": Verb("meshwright.cli.checkpoint", "look into checkpoints, check and convert them"),
    "data": Verb("meshwright.cli.data", "prepare, import and inspect token data"),
    "config": Verb("meshwright.cli.config", "start, show, check and compare configs", overrides=True),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # File names and texts may have what the terminal has not; better shown by number than nothing at all.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(arguments)
        # What is still buffered: a reader that has gone is noticed here, not at the exit of the interpreter.
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        return _exit_code(stop)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; writing the rest at exit would only raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from meshwright.config.errors import ConfigErrors

        if not isinstance(error, ConfigErrors):
            raise
        return _report(error)


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take the config overrides (``a.b=c``, ``--a.b=c``, ``--a.b c``) out of a command line: (rest, overrides)."""
    rest: list[str] = []
    overrides: list[str] = []
    tokens = iter(arguments)
    for token in tokens:
        if token == "--":
            return [*rest, token, *tokens], overrides
        if token in KEY_VALUE_OPTIONS:
            rest += [token, *([value] if (value := next(tokens, None)) is not None else [])]
        elif OPTION.match(token):
            overrides += [token, *([value] if (value := next(tokens, None)) is not None else [])]
        else:
            (overrides if OVERRIDE.match(token) else rest).append(token)
    return rest, overrides


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"meshwright {__version__}")
        return 0
    name = arguments[0]
    if name not in VERBS:
        return _unknown(name)
    verb = VERBS[name]
    module = importlib.import_module(verb.module)
    parser = Parser(prog="meshwright")
    module.add_parser(parser.add_subparsers(dest="verb", required=True))
    overrides: list[str] = []
    if verb.overrides:
        arguments, overrides = split_overrides(arguments)
    args = parser.parse_args(arguments)
    args.overrides = [*(getattr(args, "overrides", None) or []), *overrides]
    return int(module.run(args))


def _overview() -> str:
    verbs = "\n".join(f"  {name:<12}{verb.help}" for name, verb in VERBS.items())
    return f"""usage: meshwright VERB ...

Declare an LLM training run in one YAML file, check it, and train it under any parallel layout.

{verbs}

meshwright VERB --help tells more. To start: meshwright config list, meshwright config init quickstart.
Exit codes: 0 done, 1 the work failed, 2 the request was wrong."""


def _unknown(name: str) -> int:
    import difflib

    near = difflib.get_close_matches(name, VERBS, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(VERBS)}"
    print(f"meshwright: no verb {name!r}; {hint}", file=sys.stderr)
    return 2


def _report(error: Exception) -> int:
    print(error, file=sys.stderr)
    return 2


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1
