"""``meshwright plan``: which layout fits, how fast it is, why, and how far off the prediction may be."""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meshwright.cli.outputs import unwritable

if TYPE_CHECKING:
    from meshwright.config.load import LoadedConfig
    from meshwright.config.run import Asked
    from meshwright.plan.question import Question
    from meshwright.plan.search import Answer, Candidate

T = TypeVar("T")
MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB|%)?\Z")
DEFAULT_HARDWARE = "h100"
FOR_PLANNING_ONLY = ("run_mode", "pet_config")


class _RequestError(Exception):
    """What was asked for makes no sense; exit code 2."""


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "plan",
        help="rank the layouts that fit, with memory, time and reasons",
        epilog="key.path=value arguments, anywhere, override the file. LAYOUT is written as in the table, such as"
        ' "dp2 tp2 pp2 zero1 mbs1 recompute=all", or is a row number, or best. Exit codes: 0 something fits,'
        " 1 nothing does, 2 the request was wrong.",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--devices", type=int, metavar="N", help="default: the fewest that the config's layout takes")
    parser.add_argument(
        "--hardware", default=DEFAULT_HARDWARE, metavar="NAME|FILE", help=f"device (default: {DEFAULT_HARDWARE})"
    )
    parser.add_argument("--devices-per-node", type=int, metavar="N", help="devices that the fast links join")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of the table (default: 10)")
    parser.add_argument("--objective", choices=("time", "memory"), default="time", help="what to rank by")
    parser.add_argument("--global-batch", type=int, metavar="N", help="sequences per step, in place of the config's")
    parser.add_argument("--max-memory", metavar="SIZE", help="memory to use per device: 70GiB, 70GB or 90%%")
    parser.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="keep dp, tp, pp, cp, ep, zero, group, mbs, vpp, recompute (none, select, all), schedule or sp (on, off)",
    )
    parser.add_argument("--engine", default="meshwright", metavar="NAME", help="framework that will train")
    parser.add_argument("--hypothetical", action="store_true", help="also what Meshwright does not support yet")
    parser.add_argument(
        "--base-bits", type=float, default=16, choices=(4, 8, 16), help="bits per frozen weight under pet_config"
    )
    parser.add_argument("--explain", nargs="?", const="best", metavar="LAYOUT", help="the whole sum for one layout")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the best layout as a config for train")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with memory bars and a timeline")


def run(args: argparse.Namespace) -> int:
    """Plan, print, and return the exit code."""
    try:
        return _run(args)
    except _RequestError as error:
        print(f"meshwright plan: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    from meshwright.config.load import load_config
    from meshwright.plan.search import search

    _check_outputs(args)
    loaded = load_config(args.config, _given(args))
    question, asked = _question(args, loaded)
    if args.explain and not args.explain.isdigit() and args.explain != "best":
        return _explain(args, *_named(question, args.explain))
    answer = search(question)
    if not answer.considered:
        raise _RequestError(_nothing_legal(answer))
    if args.explain:
        return _explain(args, question, _numbered(answer, args.explain, args.top))
    return _show(args, answer, loaded, asked)


def _check_outputs(args: argparse.Namespace) -> None:
    for option, path in (("--write", args.write), ("--html", args.html)):
        if path is not None and (reason := unwritable(path)):
            raise _RequestError(f"{option} {path}: {reason}")


def _given(args: argparse.Namespace) -> list[str]:
    """The overrides, ``--global-batch`` among them."""
    if args.global_batch is None:
        return list(args.overrides)
    batch = [f"train.global_batch_size={args.global_batch}", "parallel_config.micro_batch_num=null"]
    return [*args.overrides, *batch]


def _question(args: argparse.Namespace, loaded: "LoadedConfig") -> "tuple[Question, Asked]":
    from meshwright.config.hardware import hardware_cluster
    from meshwright.config.key_rules import key_violations
    from meshwright.config.run import asked, joined, smallest_world_size
    from meshwright.plan.engines import engine
    from meshwright.plan.from_run import question_of
    from meshwright.plan.question import parse_fixed

    for name in ("devices", "devices_per_node", "top", "global_batch"):
        if (number := getattr(args, name)) is not None and number < 1:
            raise _RequestError(f"--{name.replace('_', '-')} {number}: must be 1 or more")
    profile = _legal("--engine", lambda: engine(args.engine))
    fixed = _legal("--fix", lambda: parse_fixed(args.fix))
    devices = args.devices or smallest_world_size(loaded.config)
    cluster = _legal("--hardware", lambda: hardware_cluster(args.hardware, devices, args.devices_per_node))
    limit = _memory(args.max_memory, cluster.device.memory_bytes)
    own = profile.name == "meshwright" and not args.hypothetical
    refused = [rule for rule in key_violations(loaded.config) if own or rule.key_path not in FOR_PLANNING_ONLY]
    if refused:
        raise joined(refused, loaded)
    wanted = asked(loaded, devices)
    question = question_of(
        wanted,
        cluster,
        profile,
        pet=loaded.config.pet_config,
        base_bits=args.base_bits,
        fixed=fixed,
        max_memory=limit,
        objective=args.objective,
        hypothetical=args.hypothetical,
    )
    return question, wanted


def _legal(option: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except ValueError as error:
        raise _RequestError(f"{option}: {error}") from None


def _memory(text: str | None, usable: float) -> float | None:
    if text is None:
        return None
    found = MEMORY.match(text.strip())
    if not found or float(found[1]) == 0:
        raise _RequestError(f"--max-memory {text}: legal are 70GiB, 70GB or 90%")
    scale = {"GB": 1e9, "%": usable / 100}.get(found[2] or "GiB", 2.0**30)
    return float(found[1]) * scale


def _named(question: "Question", text: str) -> "tuple[Question, Candidate]":
    """The layout that was named, in its fastest variant that fits, else in the one that needs least."""
    from dataclasses import replace

    from meshwright.plan.question import DEGREE_KEYS, parse_layout
    from meshwright.plan.search import predict, search

    fixed = _legal("--explain", lambda: parse_layout(text))
    needs = 1
    for key in DEGREE_KEYS[:-1]:
        needs *= int(fixed[key])
    if needs != question.cluster.num_devices:
        raise _RequestError(f"--explain {text}: takes {needs} devices, not {question.cluster.num_devices}")
    narrowed = replace(question, fixed={**question.fixed, **fixed})
    answer = search(narrowed)
    if chosen := (answer.best or next(iter(answer.over), None)):
        return narrowed, predict(narrowed, chosen.job)
    raise _RequestError(_nothing_legal(answer))


def _numbered(answer: "Answer", text: str, top: int) -> "Candidate":
    from meshwright.plan.search import one_per_split, predict

    rows = one_per_split(answer.fitting or answer.tight, top)
    if text == "best":
        return predict(answer.question, (answer.best or answer.over[0]).job)
    if not 1 <= int(text) <= len(rows):
        legal = f"1 to {len(rows)}" if rows else "a layout by name: nothing fits"
        raise _RequestError(f"--explain {text}: the table has no such row; legal: {legal}")
    return predict(answer.question, rows[int(text) - 1].job)


def _nothing_legal(answer: "Answer") -> str:
    from meshwright.plan.text import verdict
    from meshwright.spec.nearest import divisors

    reasons = dict.fromkeys(str(violation) for item in answer.illegal for violation in item.violations)
    if answer.question.fixed and not reasons:
        kept = ", ".join(f"{key}={value}" for key, value in answer.question.fixed.items())
        devices = answer.question.cluster.num_devices
        legal = ", ".join(map(str, divisors(devices)))
        reasons = {
            f"{kept} cannot be held on {devices} devices; the degrees must multiply to it, each of {legal}": None
        }
    if any(item.unsupported for item in answer.illegal):
        reasons["--hypothetical plans what is not supported yet"] = None
    return "\n  ".join([verdict(answer), *list(reasons)[:5]])


def _show(args: argparse.Namespace, answer: "Answer", loaded: "LoadedConfig", asked: "Asked") -> int:
    from meshwright.plan.as_json import plan_json
    from meshwright.plan.override import overrides, pasteable
    from meshwright.plan.text import plan_text

    best = answer.best
    words = overrides(best.job, loaded) if best and answer.question.supported_only else None
    if args.json:
        print(json.dumps(plan_json(answer, top=args.top, override=words), indent=2))
    else:
        paste = None if words is None else pasteable(words) or "nothing: the config has this layout already"
        print(plan_text(answer, top=args.top, override=paste, notices=_notices(loaded, asked, answer)))
    if args.html:
        _write_page(args, answer, None if words is None else pasteable(words))
    if args.write:
        _write(args, answer, loaded)
    return 0 if best else 1


def _notices(loaded: "LoadedConfig", asked: "Asked", answer: "Answer") -> list[str]:
    """The config's own layout where it cannot run here, and a global batch that is not the file's."""
    from meshwright.config.errors import ConfigErrors
    from meshwright.config.load import load_config
    from meshwright.config.run import asked as ask
    from meshwright.spec.batch import batch_change_notice

    devices = answer.question.cluster.num_devices
    told = [f"the config's own layout does not run on {devices} devices: {item}" for item in asked.problems[:2]]
    try:
        before = ask(load_config(loaded.path), devices).train
    except ConfigErrors:
        return told
    now = asked.train
    change = batch_change_notice(
        before.batch.global_batch_size,
        now.batch.global_batch_size,
        before.optimizer.learning_rate,
        now.optimizer.learning_rate,
    )
    return [*told, change] if change else told


def _explain(args: argparse.Namespace, question: "Question", candidate: "Candidate") -> int:
    from meshwright.plan.advice import remedies
    from meshwright.plan.as_json import explain_json, question_json
    from meshwright.plan.explain import explain_text

    over = candidate.fit == "over"
    if args.json:
        print(json.dumps({"question": question_json(question), "explain": explain_json(candidate)}, indent=2))
        return int(over)
    print(explain_text(question, candidate))
    if over:
        print("\nwhat would fit:")
        for line in remedies(question, candidate):
            print(f"  {line}")
    return int(over)


def _write(args: argparse.Namespace, answer: "Answer", loaded: "LoadedConfig") -> None:
    from meshwright.plan.override import resolved_with, written_config
    from meshwright.plan.text import full_name, verdict

    if answer.best is None:
        raise _RequestError(f"--write {args.write}: nothing fits, so there is nothing to write")
    if not answer.question.supported_only:
        raise _RequestError(
            f"--write {args.write}: meshwright train may not run what --hypothetical or --engine {args.engine} plans"
        )
    run = resolved_with(answer.best.job, loaded, _given(args))
    heading = (
        f"Written by meshwright plan from {loaded.path.name} for {answer.question.cluster.num_devices} devices"
        f" ({answer.question.cluster.device.title})",
        f"{full_name(answer.best)}",
        verdict(answer),
    )
    _put(args.write, written_config(run, heading), force=args.force)
    print(f"wrote {args.write}; next: meshwright train {args.write}", file=sys.stderr)


def _write_page(args: argparse.Namespace, answer: "Answer", override: str | None) -> None:
    from meshwright.report.plan_html import plan_page

    _put(args.html, plan_page(answer, top=args.top, override=override), force=True)
    print(f"wrote {args.html}", file=sys.stderr)


def _put(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _RequestError(f"{path}: exists already; --force overwrites it") from None
    except OSError as error:
        raise _RequestError(f"{path}: cannot be written ({error.strerror})") from None
