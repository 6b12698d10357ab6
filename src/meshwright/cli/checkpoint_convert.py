"""``meshwright checkpoint convert``: a MindSpore checkpoint as a folder that training and transformers start from."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.cli.checkpoint_export import DTYPES, byte_count

if TYPE_CHECKING:
    from meshwright.checkpoint.mindspore_convert import Converted
    from meshwright.model.mindformers import Target
    from meshwright.spec.model import ModelSpec


def add_parser(actions: Any) -> None:
    """Add the action."""
    parser = actions.add_parser(
        "convert", help="read a MindSpore or MindFormers checkpoint; write a Hugging Face folder to train from"
    )
    parser.add_argument(
        "source", metavar="SRC", type=Path, help=".ckpt or .safetensors file, or a folder of rank_N or iteration_N"
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write, which must be new or empty")
    parser.add_argument(
        "--config",
        required=True,
        type=Path,
        metavar="FILE",
        help="sizes of the model: MindFormers' YAML, a config.json, or a config of Meshwright",
    )
    parser.add_argument("--map", type=Path, metavar="FILE", help="YAML of more names, theirs: ours; see the docs")
    parser.add_argument(
        "--strategy", type=Path, metavar="DIR", help="strategy files of rank_N folders (default: strategy beside SRC)"
    )
    parser.add_argument("--allow-unmatched", action="store_true", help="leave tensors out whose names are not known")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (default: as they are, nothing is rounded)")
    parser.add_argument(
        "--shard-size", type=byte_count, default="5GB", metavar="SIZE", help="largest file, as 500MB or 5GB (5GB)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """0 done, 1 the work failed, 2 the request was wrong."""
    from meshwright.checkpoint.errors import CheckpointError

    try:
        done = _convert(args)
    except (CheckpointError, ValueError) as error:
        print(f"meshwright checkpoint convert: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"meshwright checkpoint convert: {error}", file=sys.stderr)
        return 1
    print(_as_json(done) if args.json else _as_text(args.source, done))
    return 0 if all(one.equal for one in done.compared) else 1


def _convert(args: argparse.Namespace) -> "Converted":
    import torch

    from meshwright.checkpoint.mindspore_convert import convert, intermediate_size, match_names
    from meshwright.checkpoint.mindspore_folder import open_mindspore
    from meshwright.model.mindformers import NAMES

    table = NAMES | (_read_map(args.map) if args.map else {})
    source = open_mindspore(args.source, strategy=args.strategy)
    matched = match_names(source, table)
    return convert(
        source,
        matched,
        args.out,
        _read_spec(args.config, intermediate_size(source, matched)),
        dtype=getattr(torch, args.dtype) if args.dtype else None,
        shard_size=args.shard_size,
        allow_unmatched=args.allow_unmatched,
    )


def _read_map(path: Path) -> "dict[str, Target]":
    from meshwright.model.mindformers import read_table

    try:
        return read_table(_read_yaml(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read_spec(path: Path, intermediate_size: int) -> "ModelSpec":
    from meshwright.spec.huggingface import read_model_spec
    from meshwright.spec.mindformers import is_mindformers, read_mindformers_spec

    if path.is_dir() or path.suffix == ".json":
        return read_model_spec(path)
    if is_mindformers(values := _read_yaml(path)):
        return read_mindformers_spec(values, path, intermediate_size)
    from meshwright.config.errors import ConfigErrors
    from meshwright.config.load import load_config
    from meshwright.config.resolve_model import resolve_model

    errors: list[Any] = []
    spec = resolve_model(load_config(path), errors)
    if spec is None:
        raise ConfigErrors(errors)
    return spec


def _read_yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is no YAML: {error}") from error


def _as_text(source: Path, done: "Converted") -> str:
    written, matched = done.written, done.matched
    lines = [f"{source} -> {written.folder}: {written.tensors} tensors, {written.size / 1e9:.3g} GB"]
    lines.append(f"left out: {matched.states} optimizer states and counters")
    if matched.unmatched:
        lines.append(f"left out, their names are not known ({len(matched.unmatched)}):")
        lines += [f"  {name}" for name in matched.unmatched]
    lines.append("compared (first values, sum; read back from the files):")
    for one in done.compared:
        verdict = "equal" if one.equal else "DIFFERENT"
        lines.append(f"  {one.theirs} -> {one.after} {list(one.shape)}: {verdict}")
        for values, total in ((one.before_values, one.before_sum), (one.after_values, one.after_sum)):
            lines.append(f"    {'  '.join(f'{value:+.6e}' for value in values)}  sum {total:+.9e}")
    return "\n".join(lines)


def _as_json(done: "Converted") -> str:
    result = {
        "folder": str(done.written.folder),
        "files": done.written.files,
        "tensors": done.written.tensors,
        "bytes": done.written.size,
        "states": done.matched.states,
        "unmatched": list(done.matched.unmatched),
        "compared": [asdict(one) for one in done.compared],
    }
    return json.dumps(result, indent=2)
