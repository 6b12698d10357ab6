"""``meshwright eval``: held-out loss, perplexity and bits per byte, on one process."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the verb."""
    parser = subparsers.add_parser("eval", help="held-out loss of a trained model, on one process")
    parser.add_argument(
        "run",
        metavar="RUN|CONFIG",
        type=Path,
        help="run directory, checkpoint, Hugging Face directory, or a run's config",
    )
    parser.add_argument("--data", action="append", metavar="PREFIX", help="held-out corpus (default: the run's)")
    parser.add_argument("--batches", type=int, metavar="N", help="stop after N batches (default: all of the data)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """0 done, 2 the request was wrong."""
    from meshwright.checkpoint.store import CheckpointError
    from meshwright.config.errors import ConfigErrors
    from meshwright.data.errors import DataError
    from meshwright.train.inference import NoCheckpointError

    if args.batches is not None and args.batches < 1:
        problem = f"--batches is {args.batches}; legal: 1 or more"
    else:
        try:
            print(_evaluate(args))
            return 0
        except (NoCheckpointError, CheckpointError, DataError, ConfigErrors) as error:
            problem = str(error)
    print(f"meshwright eval: {problem}", file=sys.stderr)
    return 2


def _evaluate(args: argparse.Namespace) -> str:
    from meshwright.config.load import load_config
    from meshwright.config.schema import DataPath
    from meshwright.data.dataset import TokenDataset
    from meshwright.data.errors import DataError
    from meshwright.parallel.devices import local_device, local_device_kind
    from meshwright.train.evaluate import evaluate
    from meshwright.train.inference import load_model
    from meshwright.train.vocabularies import check_vocabularies

    target = args.run
    if target.is_file():
        target = Path(load_config(target, args.overrides).config.output_dir)
    elif args.overrides:
        raise DataError("key.path=value needs a CONFIG: a run's own config is fixed")
    kind = local_device_kind()
    loaded = load_model(target, kind=kind, device=local_device(kind, 0))
    dataset = loaded.run.config.dataset
    prefixes = args.data or [entry.path for entry in dataset.eval_paths]
    if not prefixes:
        raise DataError("no held-out data: the run names none in dataset.eval_paths; give --data PREFIX")
    # Neither the data that it was trained on nor its tokenizer need still be there.
    held_out = [DataPath(path=prefix) for prefix in prefixes]
    check_vocabularies(dataset.model_copy(update={"eval_paths": held_out, "tokenizer": None}))
    train = loaded.run.train
    data = TokenDataset(
        prefixes,
        train.seq_length,
        vocab_size=loaded.run.model.vocab_size,
        pad_last=True,
        isolate_documents=train.isolate_documents,
        align_documents=dataset.align_documents,
    )
    result = evaluate(loaded.model, data, batch_size=train.batch.micro_batch_size, max_batches=args.batches)
    if args.json:
        return json.dumps({"checkpoint": str(loaded.checkpoint), "step": loaded.step, **asdict(result)}, indent=2)
    bits = "" if result.bits_per_byte is None else f"  bits per byte {result.bits_per_byte:.4f}"
    step = "" if loaded.step is None else f" (step {loaded.step})"
    head = f"{loaded.checkpoint}{step} over {result.tokens:,} tokens:"
    return f"{head} loss {result.loss:.4f}  perplexity {result.perplexity:.2f}{bits}"
