"""Memory and time of finding duplicates, by made-up keys.

    python deduplicate_memory.py [--millions N ...] [--folder DIR]

Keys of all bands are random; every fifth document has those of an earlier one. One comparison of each kind and the
dropping run in a process each; memory is the most that it had, less what it had after its imports.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from meshwright.data.corpus import Part
from meshwright.data.deduplicate.find import Finder
from meshwright.data.deduplicate.report import DuplicateCounts
from meshwright.data.deduplicate.rows import row_count
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.deduplicate.sign import keys_path
from meshwright.data.preparation.documents import Reader
from meshwright.data.preparation.shards import Shard

SETTINGS = Deduplication(exact=True, near=True)
SHARD_DOCUMENTS = 100_000


def main() -> None:
    """Run the sizes, or one step of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 10], metavar="N", help="documents (1 10)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for all work, 150 MB per million documents")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        _step(args.step, args.folder, args.millions[0])
        return
    for millions in args.millions:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            _make(Path(folder), millions)
            for step in ("exact", "band", "others", "drop"):
                command = [sys.executable, __file__, "--step", step, "--folder", folder, "--millions", str(millions)]
                done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
                if step != "others":
                    print(f"{millions} M documents, {step}: {done}", flush=True)


def _shards(millions: int) -> list[Shard]:
    return [Shard(number, (Part(Path("none")),), 1) for number in range(millions * 1_000_000 // SHARD_DOCUMENTS)]


def _make(folder: Path, millions: int) -> None:
    rng = np.random.default_rng(0)
    first = np.empty(0)
    for shard in _shards(millions):
        rows = rng.integers(1, 1 << 64, (row_count(SETTINGS), SHARD_DOCUMENTS), dtype=np.uint64)
        rows[0] = 5000
        first = first if len(first) else rows.copy()
        again = rng.integers(0, SHARD_DOCUMENTS, SHARD_DOCUMENTS // 5)
        rows[:, ::5] = (rows if shard.number % 2 else first)[:, again]
        np.save(keys_path(folder, shard), rows)


def _step(step: str, folder: Path, millions: int) -> None:
    finder = Finder(SETTINGS, _shards(millions), folder, folder)
    exact = [one for one in finder.comparisons if finder.comparer.is_exact(one)]
    bands = finder.comparisons[len(exact) :]
    before, start, cpu = _peak(), time.perf_counter(), time.process_time()
    if step == "drop":
        finder.drop(Reader("text"), examples=0)
    for comparison in {"exact": exact[:1], "band": bands[:1], "others": exact[1:] + bands[1:], "drop": []}[step]:
        finder.comparer(comparison)
    result = {"MB": (_peak() - before) / 1e6, "cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - start}
    result["bytes_per_document"] = result["MB"] / millions
    if step == "drop":
        result["dropped"] = DuplicateCounts.load(folder).exact.documents
    print(json.dumps(result))


def _peak() -> int:
    """Most memory of this process so far, in bytes, files mapped into memory among it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    main()
