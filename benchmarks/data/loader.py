"""What loader processes cost and give: start, samples in a second, CPU time of a sample, memory of a process.

    python loader.py [--seq-length N] [--batch N] [--batches N] [--json FILE]

Reads batches of one rank from a generated corpus in the page cache, with 0, 1, 2 and 4 loader processes and nothing
else to do: the most that a loader can give. CPU times, after the first batch, are of this process ("here") and of all
loader processes ("there"). Memory of a process counts pages of the corpus; its own are those that no other shares.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from meshwright.data.dataset import TokenDataset
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loader import build_loader

VOCAB, DOCUMENTS = 50_000, 40_000


def main() -> None:
    """Run all numbers of processes, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq-length", type=int, default=4096, help="tokens of a sample (4096)")
    parser.add_argument("--batch", type=int, default=64, help="samples of a batch (64)")
    parser.add_argument("--batches", type=int, default=100, help="batches to read (100)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "corpus"
        rng = np.random.default_rng(0)
        with IndexedWriter(prefix, vocab_size=VOCAB) as writer:
            for length in rng.geometric(1 / 600, DOCUMENTS).tolist():
                writer.add_document(rng.integers(1, VOCAB, length))
        data = TokenDataset([prefix], args.seq_length, vocab_size=VOCAB)
        results = [_measure(data, workers, args.batch, args.batches) for workers in (0, 1, 2, 4)]
    print("processes  first batch  samples/s  us here  us there  MiB each  of its own")
    for found in results:
        print(
            f"{found['workers']:>9}  {found['first_s']:>9.2f} s  {found['samples_per_s']:>9,.0f}  "
            f"{found['here_us']:>7.1f}  {found['there_us']:>8.1f}  {found['rss_mib']:>8.1f}  {found['uss_mib']:>10.1f}"
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _measure(data: TokenDataset, workers: int, batch: int, batches: int) -> dict[str, Any]:
    begun = time.perf_counter()
    with build_loader(
        data,
        order=data.order(1),
        first_step=0,
        num_steps=batches + 1,
        global_batch_size=batch,
        data_rank=0,
        data_parallel=1,
        num_parallel_workers=workers,
        prefetch_size=2,
    ) as loader:
        next(loader)
        processes = psutil.Process().children()
        first = time.perf_counter() - begun
        wall, here, there = time.perf_counter(), time.process_time(), _cpu(processes)
        for _ in loader:
            pass
        wall, here, there = time.perf_counter() - wall, time.process_time() - here, _cpu(processes) - there
        memory = [process.memory_full_info() for process in processes]
    samples = batch * batches
    return {
        "workers": workers,
        "first_s": first,
        "samples_per_s": samples / wall,
        "here_us": here / samples * 1e6,
        "there_us": there / samples * 1e6,
        "rss_mib": max((part.rss for part in memory), default=0) / 2**20,
        "uss_mib": max((part.uss for part in memory), default=0) / 2**20,
    }


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    main()
