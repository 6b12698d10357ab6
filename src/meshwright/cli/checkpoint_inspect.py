"""``meshwright checkpoint inspect``: step, layout, config, tensors, files and sums of a checkpoint."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.checkpoint.inspect import Inspection


def add_parser(actions: Any) -> None:
    """Add the action."""
    parser = actions.add_parser("inspect", help="step, layout, config, tensors, files and sums; reads no tensor")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a checkpoint, or a run: its newest complete one")
    parser.add_argument("--config", action="store_true", help="print the config that it was saved with, as YAML")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """0 done, 2 there is no complete checkpoint."""
    from meshwright.checkpoint.errors import CheckpointError
    from meshwright.checkpoint.inspect import inspect
    from meshwright.checkpoint.locate import newest_in

    try:
        found = inspect(newest_in(args.folder))
    except CheckpointError as error:
        print(f"meshwright checkpoint inspect: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(_as_json(found), indent=2))
    elif args.config:
        print(found.state.get("config", ""), end="")
    else:
        print("\n".join(_text(found)))
    return 0


def _as_json(found: "Inspection") -> dict[str, Any]:
    manifest = asdict(found.manifest)
    return {
        "path": str(found.path),
        **{name: manifest[name] for name in ("step", "run_id", "world_size", "sequence", "versions")},
        "bytes": found.size,
        "state": found.state,
        "tensors": [asdict(tensor) for tensor in found.tensors],
        "files": manifest["files"],
    }


def _text(found: "Inspection") -> list[str]:
    from meshwright.checkpoint.files import human_bytes
    from meshwright.checkpoint.inspect import tree

    manifest, state = found.manifest, found.state
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    counters = ", ".join(f"{name} {value:,}" for name, value in state.get("counters", {}).items())
    parameters = sum(tensor.values for tensor in found.tensors if tensor.name.startswith("model."))
    return [
        f"{found.path}",
        f"step {manifest.step} of run {manifest.run_id}, saved by {manifest.world_size} ranks with {versions}",
        f"layout: {state.get('layout', 'not said')}",
        f"counters: {counters or 'none'}",
        f"parameters: {parameters:,}",
        f"size: {human_bytes(found.size)} in {len(manifest.files)} files",
        "",
        *tree(found.tensors),
        "",
        *(f"{record.sha256}  {record.size:>14,}  {name}" for name, record in sorted(manifest.files.items())),
    ]
