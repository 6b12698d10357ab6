"""``meshwright checkpoint export``: a trained model in the format of other tools."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

DTYPES = ("float32", "bfloat16", "float16")
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def add_parser(actions: Any) -> None:
    """Add the action."""
    parser = actions.add_parser("export", help="write a model that transformers or MindFormers loads")
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory (its newest checkpoint) or a checkpoint")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write, which must be new or empty")
    parser.add_argument(
        "--format", choices=("hf", "mindformers"), default="hf", help="names and layout of the weights (hf)"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (default: as trained, nothing is rounded)")
    parser.add_argument(
        "--shard-size", type=byte_count, default="5GB", metavar="SIZE", help="largest file, as 500MB or 5GB (5GB)"
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json (default: that of the run)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def byte_count(text: str) -> int:
    """``500MB`` as a number of bytes; raises ArgumentTypeError with the form that is legal."""
    match = re.fullmatch(r"(\d+)(KB|MB|GB|)", text.strip().upper())
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; legal: a number above 0 with KB, MB or GB")
    return int(match[1]) * UNITS[match[2]]


def run(args: argparse.Namespace) -> int:
    """0 done, 1 the work failed, 2 the request was wrong."""
    from meshwright.checkpoint.store import CheckpointError
    from meshwright.data.errors import DataError
    from meshwright.train.inference import NoCheckpointError

    try:
        print(_export(args))
        return 0
    except (NoCheckpointError, CheckpointError, DataError) as error:
        problem, code = str(error), 2
    except OSError as error:
        problem, code = str(error), 1
    print(f"meshwright checkpoint export: {problem}", file=sys.stderr)
    return code


def _export(args: argparse.Namespace) -> str:
    import torch

    from meshwright.checkpoint.huggingface_export import export_checkpoint
    from meshwright.checkpoint.mindspore_export import export_mindformers
    from meshwright.train.export import export_model

    done = export_model(
        args.run,
        args.out,
        write={"hf": export_checkpoint, "mindformers": export_mindformers}[args.format],
        dtype=getattr(torch, args.dtype) if args.dtype else None,
        shard_size=args.shard_size,
        tokenizer=args.tokenizer,
    )
    written = done.written
    if args.json:
        result = {
            "checkpoint": str(done.checkpoint),
            "step": done.step,
            "folder": str(written.folder),
            "files": written.files,
            "tensors": written.tensors,
            "bytes": written.size,
            "tokenizer": str(done.tokenizer) if done.tokenizer else None,
        }
        return json.dumps(result, indent=2)
    plural = "s" if written.files != 1 else ""
    tokenizer = f"tokenizer: {done.tokenizer}" if done.tokenizer else "no tokenizer found: give --tokenizer FILE"
    return (
        f"{done.checkpoint} (step {done.step}) -> {written.folder}: {written.tensors} tensors,"
        f" {written.size / 1e9:.3g} GB in {written.files} file{plural}\n{tokenizer}"
    )
