"""Decisions of MinHash on whole corpora, beside datatrove's: --datatrove PYTHON [--corpus NAME ...] [--size MB]

Nothing is cleaned before. The same clusters? And of each the same document kept?
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from deduplicate import CORPORA

from meshwright.data.deduplicate.clusters import Clusters
from meshwright.data.deduplicate.compare import equal_keys
from meshwright.data.deduplicate.near import NearKeys
from meshwright.data.deduplicate.rows import NO_KEY
from meshwright.data.deduplicate.settings import Deduplication


def main() -> None:
    """Print a line for each corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datatrove", required=True, metavar="PYTHON", help="interpreter that has datatrove")
    parser.add_argument("--corpus", action="append", choices=CORPORA, help="only these (default: all)")
    parser.add_argument("--size", type=int, default=20, metavar="MB", help="of the generated corpus (20)")
    args = parser.parse_args()
    for name in args.corpus or CORPORA:
        texts = list(CORPORA[name](args.size))
        first = _first(texts)
        numbers = np.arange(len(texts))
        ours, theirs = set(numbers[first != numbers].tolist()), _theirs(texts, args.datatrove)
        kept = sorted(first[sorted(set(range(len(texts))) - theirs)].tolist())
        same = 1 - len(ours ^ theirs) / len(texts)
        print(
            f"{name}: {len(texts)} documents, {len(ours)} dropped by us, {len(theirs)} by datatrove; "
            f"one left of each of our clusters there: {kept == sorted(set(first.tolist()))}; same decisions {same:.3%}",
            flush=True,
        )


def _first(texts: list[str]) -> "np.typing.NDArray[np.int64]":
    """The first document of the cluster of each, by band after band."""
    keys, clusters, numbers = NearKeys(Deduplication(near=True)), Clusters(len(texts)), np.arange(len(texts))
    for text in texts:
        keys.add(text)
    for band in keys.take():
        clusters.join(equal_keys(band[None, band != NO_KEY], numbers[band != NO_KEY]))
    return clusters.first(numbers)


def _theirs(texts: list[str], python: str) -> set[int]:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        json.dump(texts, file)
        file.flush()
        command = [python, str(Path(__file__).with_name("deduplicate_golden.py")), file.name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return set(json.loads(done.stdout))


if __name__ == "__main__":
    main()
