"""Tokenize and write beside megatron-core's way and datasets' way: tokens in a second of all processes' CPU time.

    python tokenizing.py --megatron PYTHON --datasets PYTHON [--corpus NAME] [--size MB] [--processes N ...]
        [--rounds N] [--vocabulary SIZE] [--json FILE]

PYTHON are interpreters of environments of their own: ``pip install megatron-core torch transformers`` and ``pip
install datasets transformers``. All sides read the same rows of JSON with the same tokenizer.json, trained here, and
take turns; the best round of each counts, from the start of the program to its end. Ours is ``meshwright data prepare``
as a user calls it. Our token files must be megatron-core's byte for byte.
"""

import argparse
import filecmp
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from corpora import generated, standard_library

from meshwright.data.indexed import IndexedDataset
from meshwright.data.vocabulary.tokenizer import load_tokenizer, train_tokenizer

HERE = Path(__file__).parent
CORPORA = ("standard library", "generated")
TRAINED_ON = 20_000


def main() -> None:
    """Compare on the corpora, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, metavar="PYTHON", help="interpreter that has megatron-core")
    parser.add_argument("--datasets", required=True, metavar="PYTHON", help="interpreter that has datasets")
    parser.add_argument("--corpus", action="append", choices=CORPORA, help="take this one (all)")
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="size of the generated corpus (1000)")
    parser.add_argument("--processes", type=int, nargs="+", default=(1, 2), metavar="N", help="of each side (1 2)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each side (2)")
    parser.add_argument("--vocabulary", type=int, default=32_000, metavar="SIZE", help="ids to train (32,000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        texts = dict(zip(CORPORA, (standard_library, lambda: generated(args.size * 1_000_000)), strict=True))
        body = train_tokenizer(
            chain(standard_library(), islice(generated(args.size * 1_000_000), TRAINED_ON)), args.vocabulary
        ).body
        vocabulary = Path(folder) / "tokenizer.json"
        vocabulary.write_bytes(body)
        for name in args.corpus or CORPORA:
            rows = Path(folder) / "rows.jsonl"
            with open(rows, "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in texts[name]())
            for processes in args.processes:
                found = _compare(rows, vocabulary, processes, args)
                results.append({"corpus": name, "bytes": rows.stat().st_size, "processes": processes, **found})
                print(_line(results[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _compare(rows: Path, vocabulary: Path, processes: int, args: argparse.Namespace) -> dict[str, Any]:
    end = load_tokenizer(vocabulary).eos_token
    best: dict[str, dict[str, float]] = {}
    tokens = 0
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(dir=rows.parent) as folder:
            for side, command in _commands(rows, vocabulary, end, Path(folder), processes, args):
                found = _run(command)
                known = best.get(side, found)
                best[side] = {name: min(value, known[name]) for name, value in found.items()}
            for suffix in (".bin", ".idx"):
                same = filecmp.cmp(f"{folder}/ours{suffix}", f"{folder}/megatron{suffix}", shallow=False)
                assert same, f"{suffix} files differ"
            tokens = len(IndexedDataset(f"{folder}/ours").tokens)
    return {"tokens": tokens, **best}


def _commands(
    rows: Path, vocabulary: Path, end: str, folder: Path, processes: int, args: argparse.Namespace
) -> Iterator[tuple[str, list[str]]]:
    prepare = ["-m", "meshwright", "data", "prepare", str(rows), "--tokenizer", str(vocabulary)]
    options = ["--output", str(folder / "ours"), "--eval-fraction", "0", "--workers", str(processes)]
    yield "ours", [sys.executable, *prepare, *options]
    for side, python in (("megatron", args.megatron), ("datasets", args.datasets)):
        script = [str(HERE / f"tokenizing_{side}.py"), str(rows), str(vocabulary), end]
        yield side, [python, *script, str(folder / side), str(processes)]


def _run(command: list[str]) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu, "wall_s": time.perf_counter() - wall}


def _line(result: dict[str, Any]) -> str:
    ours = result["ours"]
    sides = [
        f"{side} {result['tokens'] / result[side]['cpu_s'] / 1e6:.2f} M tokens/CPU s, {result[side]['wall_s']:.1f} s"
        + ("" if side == "ours" else f" ({result[side]['cpu_s'] / ours['cpu_s']:.2f}x CPU,")
        + ("" if side == "ours" else f" {result[side]['wall_s'] / ours['wall_s']:.2f}x time)")
        for side in ("ours", "megatron", "datasets")
    ]
    size = f"{result['bytes'] / 1e6:.0f} MB, {result['tokens'] / 1e6:.1f} M tokens"
    return f"{result['corpus']} ({size}), {result['processes']} processes: {'; '.join(sides)}"


if __name__ == "__main__":
    main()
