"""``meshwright generate``: continue a prompt from any checkpoint."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the verb."""
    parser = subparsers.add_parser("generate", help="continue a prompt from any checkpoint, on one process")
    parser.add_argument(
        "run",
        metavar="RUN",
        type=Path,
        help="run directory (its newest checkpoint), checkpoint or Hugging Face directory",
    )
    parser.add_argument("--prompt", required=True, help="text to continue; bytes that are not UTF-8 become U+FFFD")
    parser.add_argument("--max-tokens", type=int, default=100, metavar="N", help="tokens to add at most (100)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0 takes the likeliest (0.8)")
    parser.add_argument("--top-k", type=int, default=50, metavar="K", help="sample from the K likeliest (50)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the sampling (0)")
    parser.add_argument("--tokenizer", metavar="FILE", help="vocabulary (default: the run's dataset.tokenizer)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """0 done, 2 the request was wrong."""
    from meshwright.checkpoint.store import CheckpointError
    from meshwright.data.errors import DataError
    from meshwright.train.inference import NoCheckpointError

    problem = _problem(args)
    if problem is None:
        try:
            print(_generate(args))
            return 0
        except (NoCheckpointError, CheckpointError, DataError) as error:
            problem = str(error)
    print(f"meshwright generate: {problem}", file=sys.stderr)
    return 2


def _problem(args: argparse.Namespace) -> str | None:
    for name, value, least in (
        ("--max-tokens", args.max_tokens, 1),
        ("--top-k", args.top_k, 1),
        ("--temperature", args.temperature, 0),
    ):
        if not value >= least:
            return f"{name} is {value}; legal: {least} or more"
    return None


def _generate(args: argparse.Namespace) -> str:
    from meshwright.data.errors import DataError
    from meshwright.data.text import repair
    from meshwright.data.vocabulary.tokenizer import load_tokenizer
    from meshwright.parallel.devices import local_device, local_device_kind
    from meshwright.train.generate import generate
    from meshwright.train.inference import load_model

    kind = local_device_kind()
    loaded = load_model(args.run, kind=kind, device=local_device(kind, 0))
    file = args.tokenizer or loaded.run.config.dataset.tokenizer
    if file is None:
        raise DataError("no tokenizer: the run names none in dataset.tokenizer; give --tokenizer FILE")
    tokenizer = load_tokenizer(file)
    vocab_size = loaded.run.model.vocab_size
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"{file}: has ids up to {tokenizer.vocab_size - 1}, outside the model's vocabulary of {vocab_size}"
        )
    # Python gives bytes that are not UTF-8 as lone surrogates.
    start, _ = repair(args.prompt)
    # An empty prompt starts where documents start: after an end of text.
    prompt = tokenizer.encode([start])[0] or [tokenizer.eos_id]
    new = generate(
        loaded.model,
        prompt,
        max_tokens=args.max_tokens,
        eos_id=tokenizer.eos_id,
        temperature=args.temperature,
        top_k=args.top_k,
        seed=args.seed,
    )
    text = tokenizer.decode_after(prompt, new)
    if not args.json:
        return start + text
    result = {
        "checkpoint": str(loaded.checkpoint),
        "step": loaded.step,
        "prompt": start,
        "text": text,
        "tokens": len(new),
    }
    return json.dumps(result, indent=2)
