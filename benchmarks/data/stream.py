"""The blended stream beside megatron-core's: time to the first sample, and samples read in a second.

    python stream.py --megatron PYTHON [--corpora PREFIX PREFIX] [--rounds N] [--json FILE]

PYTHON is an interpreter of an environment of its own with ``pip install megatron-core torch``. Both sides read the same
two corpora (of made-up ids, or prepared ones of at most 50,000 ids), blended 7 to 3, in one process each and without
read-ahead: batches of 64 samples, tokens and labels as two tensors. They take turns, and the best round of each counts.
megatron-core builds its tables of documents, samples and blend anew in each round, since a run of another length or
seed needs others.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.indexed_writer import IndexedWriter

HERE = Path(__file__).parent
VOCAB = 50_000
SAMPLES_OF_RUN = 200_000
BATCHES = 40


def main() -> None:
    """Run all sample lengths, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, metavar="PYTHON", help="interpreter that has megatron-core")
    parser.add_argument("--corpora", nargs=2, metavar="PREFIX", help="read these prepared corpora, not made-up ids")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefixes = args.corpora or [_made_up(Path(folder) / str(number), number) for number in (60_000, 20_000)]
        results = [_compare(prefixes, length, args.megatron, args.rounds) for length in (1024, 4096)]
    for result in results:
        print(_line(result))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _made_up(prefix: Path, documents: int) -> str:
    rng = np.random.default_rng(documents)
    with IndexedWriter(prefix, vocab_size=VOCAB) as writer:
        for length in rng.geometric(1 / 600, documents).tolist():
            writer.add_document(np.append(rng.integers(1, VOCAB, length), 0))
    return str(prefix)


def _compare(prefixes: list[str], seq_length: int, megatron: str, rounds: int) -> dict[str, Any]:
    sides = {"ours": (sys.executable, "stream_ours.py"), "megatron": (megatron, "stream_megatron.py")}
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for side, (python, script) in sides.items():
            found = _run([python, str(HERE / script), *prefixes, str(seq_length), str(SAMPLES_OF_RUN), str(BATCHES)])
            known = best.get(side, found)
            best[side] = {name: min(value, known[name]) for name, value in found.items()}
    return {"seq_length": seq_length, "samples": 64 * BATCHES, **best}


def _run(command: list[str]) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _line(result: dict[str, Any]) -> str:
    samples = result["samples"]
    sides = [
        f"{side}: start {result[side]['start_s']:.3f} s, {samples / result[side]['cpu_s']:,.0f} samples / CPU s, "
        f"{samples / result[side]['wall_s']:,.0f} samples / s"
        for side in ("ours", "megatron")
    ]
    ratio = result["megatron"]["cpu_s"] / result["ours"]["cpu_s"]
    return f"seq_length {result['seq_length']}: {'; '.join(sides)}; {ratio:.2f}x by CPU time"


if __name__ == "__main__":
    main()
