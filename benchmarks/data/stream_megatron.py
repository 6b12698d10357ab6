"""The side of `stream.py` that is megatron-core's: two prefixes, seq_length, samples of the run, batches to read."""

import json
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig


class Tokenizer:
    """What the data set asks of a tokenizer: the end-of-text id and a name for its cache."""

    eod, pad, vocab_size = 0, None, 50_000
    unique_identifiers = {"class": "bench"}


def main() -> None:
    """Read the batches, print the seconds as JSON."""
    *prefixes, seq_length, samples, batches = sys.argv[1:]
    # The builder asks for its rank.
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    with tempfile.TemporaryDirectory() as cache:
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=int(seq_length),
            blend=(prefixes, [7.0, 3.0]),
            split="1,0,0",
            path_to_cache=cache,
            tokenizer=Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        start = time.perf_counter()
        builder = BlendedMegatronDatasetBuilder(GPTDataset, [int(samples), 0, 0], lambda: True, config)
        data = builder.build()[0]
        read(data, 0)
        started = time.perf_counter() - start
        wall, cpu, total = time.perf_counter(), time.process_time(), 0
        for step in range(int(batches)):
            tokens, labels = read(data, step)
            total += int(tokens[0, 0]) + int(labels[0, 0])
        used = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
    print(json.dumps({"start_s": started, **used}))


def read(data: GPTDataset, step: int) -> list[torch.Tensor]:
    """Tokens and labels of a batch, int64 [64, S] each."""
    rows = [data[number] for number in range(64 * step, 64 * (step + 1))]
    return [torch.stack([row[name] for row in rows]) for name in ("tokens", "labels")]


if __name__ == "__main__":
    main()
