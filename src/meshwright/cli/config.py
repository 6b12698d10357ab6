"""``meshwright config``: start, show, check and compare configs."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.config.load import LoadedConfig
    from meshwright.config.run import Run

OVERRIDES = "key.path=value arguments, anywhere, override the file"


def add_parser(subparsers: Any) -> None:
    """Declare the verb and its actions."""
    parser = subparsers.add_parser("config", help="start, show, check and compare configs")
    actions = parser.add_subparsers(dest="action", required=True)

    init = actions.add_parser("init", help="write a starter config")
    init.add_argument("name", help="a name from `meshwright config list`")
    init.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: NAME.yaml")
    init.add_argument("--force", action="store_true", help="overwrite FILE")

    listing = actions.add_parser("list", help="list the starter configs")

    show = actions.add_parser("show", help="print the resolved config", epilog=OVERRIDES)
    show.add_argument("config", type=Path, nargs="?", metavar="CONFIG")
    show.add_argument("--origin", action="store_true", help="say where each value came from")
    show.add_argument("--from-log", type=Path, metavar="LOG", help="recover the config of a run from its log")

    check = actions.add_parser("check", help="find mistakes, print advice", epilog=OVERRIDES)
    check.add_argument("config", type=Path, metavar="CONFIG")

    diff = actions.add_parser("diff", help="what changed between two configs", epilog=f"{OVERRIDES} B")
    diff.add_argument("a", type=Path, metavar="A")
    diff.add_argument("b", type=Path, nargs="?", metavar="B", help="default: A with the overrides")

    for action in (show, check, diff):
        text = "devices of the run; default: the fewest that the layout allows"
        action.add_argument("--world-size", type=int, metavar="N", help=text)
    for action in (listing, show, check, diff):
        action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run one action and return the exit code."""
    if args.action in ("init", "list") and args.overrides:
        return _refuse(f"{args.overrides[0]}: config {args.action} takes no overrides")
    world_size = getattr(args, "world_size", None)
    if world_size is not None and world_size < 1:
        return _refuse(f"--world-size {world_size}: must be 1 or more")
    actions = {"init": _init, "list": _list, "show": _show, "check": _check, "diff": _diff}
    return actions[args.action](args)


def _init(args: argparse.Namespace) -> int:
    from meshwright.config.recipes import recipe

    text = recipe(args.name)
    output: Path = args.output or Path(f"{args.name}.yaml")
    try:
        with output.open("w" if args.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return _refuse(f"{output}: exists already; --force overwrites it, -o FILE writes another")
    except OSError as error:
        return _refuse(f"{output}: cannot be written ({error.strerror})")
    print(f"wrote {output}; next: meshwright config check {output}")
    return 0


def _list(args: argparse.Namespace) -> int:
    from meshwright.config.recipes import recipes, summary

    known = {name: summary(text) for name, text in recipes().items()}
    if args.json:
        return _print_json(known)
    width = max(map(len, known), default=0)
    for name, text in known.items():
        print(f"{name:<{width}}  {text}")
    return 0


def _show(args: argparse.Namespace) -> int:
    if (args.config is None) == (args.from_log is None):
        return _refuse("config show needs either CONFIG or --from-log LOG")
    if args.from_log is not None:
        return _show_log(args)
    _, resolved = _resolve(args.config, args.overrides, args.world_size)
    from meshwright.config.diff import flat
    from meshwright.config.run import resolved_yaml
    from meshwright.config.validate import show

    values = flat(resolved.config)
    if args.json and args.origin:
        return _print_json({key: {"value": v, "origin": str(resolved.origin(key))} for key, v in values.items()})
    if args.json:
        return _print_json(resolved.config.model_dump(mode="json", exclude={"base_config"}))
    if not args.origin:
        print(f"# resolved for {resolved.layout.world_size} device(s)")
        print(resolved_yaml(resolved), end="")
        return 0
    lines = {f"{key}: {show(value)}": resolved.origin(key) for key, value in values.items()}
    width = min(max(map(len, lines)), 60)
    for line, origin in lines.items():
        print(f"{line:<{width}}  # {origin}")
    return 0


def _show_log(args: argparse.Namespace) -> int:
    from meshwright.config.errors import ConfigError, ConfigErrors
    from meshwright.config.run import config_from_log
    from meshwright.config.source import parse_text, read_file

    if args.overrides or args.origin or args.world_size:
        return _refuse("--from-log prints what the log holds; it takes no overrides, --origin or --world-size")
    try:
        text = config_from_log(read_file(args.from_log, lenient=True))
    except ConfigErrors as errors:
        first = errors.errors[0]
        found = ConfigError(first.message, file=str(args.from_log), suggestion=first.suggestion)
        raise ConfigErrors([found]) from None
    if args.json:
        node = parse_text(text, str(args.from_log), [])
        return _print_json(node.plain() if node else None)
    print(text, end="")
    return 0


def _check(args: argparse.Namespace) -> int:
    from meshwright.config.advice import advise
    from meshwright.config.errors import ConfigErrors
    from meshwright.config.run import config_hash
    from meshwright.launch.cores import usable_cores

    try:
        loaded, resolved = _resolve(args.config, args.overrides, args.world_size)
    except ConfigErrors as errors:
        if args.json:
            _print_json({"ok": False, "errors": [vars(error) for error in errors.errors]})
            return 2
        count = len(errors.errors)
        print(f"{errors}\n{count} mistake{'s' * (count > 1)}; nothing was started", file=sys.stderr)
        return 2
    advice = advise(resolved, loaded.config, cores=usable_cores())
    if args.json:
        facts = {"ok": True, "world_size": resolved.layout.world_size, "hash": config_hash(resolved)}
        return _print_json({**facts, "summary": _summary(resolved), "advice": [vars(item) for item in advice]})
    print(f"{args.config}: ok on {resolved.layout.world_size} device(s)")
    for line in _summary(resolved):
        print(f"  {line}")
    for item in advice:
        print(f"advice: {item}")
    return 0


def _summary(run: "Run") -> list[str]:
    from meshwright.spec.batch import equation
    from meshwright.spec.layers import describe_layer_map, layer_map
    from meshwright.spec.parameters import total
    from meshwright.spec.schedule import describe_duration

    train, batch = run.train, run.train.batch
    return [
        f"parameters: {total(run.model):,}",
        f"layout: {run.layout.short()}",
        equation(batch, run.layout.data_parallel, train.seq_length),
        describe_duration(train.duration, train.tokens_per_step, batch.global_batch_size),
        describe_layer_map(layer_map(run.model.num_layers, run.layout)),
    ]


def _diff(args: argparse.Namespace) -> int:
    from meshwright.config.diff import differences, notices

    if args.b is None and not args.overrides:
        return _refuse("config diff needs a second config, or overrides to compare with")
    _, before = _resolve(args.a, (), args.world_size)
    _, after = _resolve(args.b or args.a, args.overrides, args.world_size)
    changed, told = differences(before, after), notices(before, after)
    if args.json:
        return _print_json({"changed": [vars(item) for item in changed], "notices": told})
    for item in changed:
        print(item)
    for notice in told:
        print(f"notice: {notice}")
    if not changed:
        print("no difference")
    return 0


def _resolve(path: Path, overrides: Sequence[str], world_size: int | None) -> "tuple[LoadedConfig, Run]":
    from meshwright.config.load import load_config
    from meshwright.config.run import resolve, smallest_world_size

    loaded = load_config(path, overrides)
    return loaded, resolve(loaded, world_size or smallest_world_size(loaded.config))


def _print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0


def _refuse(message: str) -> int:
    print(f"meshwright: {message}", file=sys.stderr)
    return 2
