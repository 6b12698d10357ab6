"""The side of `stream.py` that is ours: two prefixes, seq_length, samples of the run, batches to read."""

import json
import sys
import time

import torch

from meshwright.data.blend import BlendedDataset
from meshwright.data.dataset import TokenDataset
from meshwright.data.steps import StepReader


def main() -> None:
    """Read the batches, print the seconds as JSON."""
    *prefixes, seq_length, _, batches = sys.argv[1:]
    start = time.perf_counter()
    data = BlendedDataset([TokenDataset([prefix], int(seq_length), vocab_size=50_000) for prefix in prefixes], [7, 3])
    order = data.order(seed=1)
    reader = StepReader(dataset=data, order=order, global_batch_size=64, data_rank=0, data_parallel=1)
    reader(0)
    started = time.perf_counter() - start
    wall, cpu, total = time.perf_counter(), time.process_time(), 0
    for step in range(int(batches)):
        tokens, labels = (torch.from_numpy(part) for part in reader(step))
        total += int(tokens[0, 0]) + int(labels[0, 0])
    print(json.dumps({"start_s": started, "cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}))


if __name__ == "__main__":
    main()
