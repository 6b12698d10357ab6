"""Meshwright, Hugging Face Trainer and litgpt on the same models, one core, in turns.

python make_environments.py --into ~/peers
python run.py --peers ~/peers --json results.json
"""

import argparse
import json
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from shapes import SHAPES, Shape
from summary import summarise, table
from tools import VARIANTS, Setting, Variant, WorkerFailed, matmul_peak, measure

from meshwright.data.indexed_writer import IndexedWriter


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder that make_environments.py filled")
    parser.add_argument("--meshwright-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--tools", nargs="+", default=["meshwright", "hf", "litgpt"])
    parser.add_argument("--precisions", nargs="+", default=sorted({v.precision for v in VARIANTS}))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="timed steps in each round")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them, not timed")
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--peak-seconds", type=float, default=3.0, help="per dtype and round")
    parser.add_argument("--compile", action="store_true", help="all tools with torch.compile")
    parser.add_argument("--override", action="append", default=[], help="key.path=value for meshwright train")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    return parser.parse_args(argv)


def write_tokens(prefix: Path, shape: Shape, count: int) -> None:
    """Random ids with word-like frequencies (Zipf), so that the loss has something to learn."""
    ranks = np.arange(1, shape.vocab_size + 1)
    chances = 1 / (ranks + 2.7)
    ids = np.random.default_rng(1).choice(shape.vocab_size, size=count, p=chances / chances.sum())
    with IndexedWriter(prefix, vocab_size=shape.vocab_size) as writer:
        writer.add_document(ids)


def take_turns(
    variants: list[Variant], setting: Setting, rounds: int, peak_seconds: float, folder: Path
) -> tuple[dict[Variant, list[dict[str, Any]]], dict[str, float]]:
    """Every variant once per round, so that a slow minute of the machine hits all of them alike."""
    results: dict[Variant, list[dict[str, Any]]] = {variant: [] for variant in variants}
    peaks = []
    for number in range(rounds):
        peaks.append(matmul_peak(setting.pythons["meshwright"], peak_seconds))
        for variant in variants:
            place = folder / f"round{number}" / f"{variant.tool}-{variant.precision}"
            result = measure(variant, setting, place)
            shutil.rmtree(place)
            require_same_model(variant, result, setting.shape)
            results[variant].append(result)
            print(f"round {number + 1}/{rounds}: {variant.name}", file=sys.stderr, flush=True)
    return results, {dtype: max(peak[dtype] for peak in peaks) for dtype in ("fp32", "bf16")}


def require_same_model(variant: Variant, result: dict[str, Any], shape: Shape) -> None:
    if result["parameters"] != shape.parameters():
        raise WorkerFailed(
            f"{variant.name} trained {result['parameters']} parameters, the model has {shape.parameters()}"
        )


def benchmark(shape: Shape, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    steps = arguments.warmup + arguments.steps
    prefix = folder / "tokens"
    samples = (steps + 1) * arguments.micro_batch_size
    write_tokens(prefix, shape, samples * shape.seq_length + 1)
    setting = Setting(
        shape=shape,
        micro_batch_size=arguments.micro_batch_size,
        steps=steps,
        compile=arguments.compile,
        tokens=prefix,
        pythons={"meshwright": arguments.meshwright_python}
        | {tool: arguments.peers / tool / "bin" / "python" for tool in ("hf", "litgpt")},
        overrides=tuple(arguments.override),
    )
    variants = [v for v in VARIANTS if v.tool in arguments.tools and v.precision in arguments.precisions]
    results, peak = take_turns(variants, setting, arguments.rounds, arguments.peak_seconds, folder)
    rows = summarise(shape, arguments.micro_batch_size, results, peak, arguments.warmup)
    raw = {variant.name: rounds for variant, rounds in results.items()}
    return {"parameters": shape.parameters(), "peak_flops": peak, "rows": rows, "rounds": raw}


def main() -> int:
    arguments = parse()
    report: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "shapes": {}}
    for name in arguments.shapes:
        with tempfile.TemporaryDirectory(prefix="train-vs-peers-") as folder:
            try:
                result = benchmark(SHAPES[name], arguments, Path(folder))
            except WorkerFailed as error:
                print(error, file=sys.stderr)
                return 1
        report["shapes"][name] = result
        peak = {dtype: f"{flops / 1e12:.3f}" for dtype, flops in result["peak_flops"].items()}
        print(f"\n{name}: {result['parameters'] / 1e6:.1f}M parameters, one core, TFLOP/s of a matrix product: {peak}")
        print(table(result["rows"]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
