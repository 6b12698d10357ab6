"""What it costs to keep attention inside documents: CPU seconds of forward and backward over one micro-batch.

python benchmarks/isolation.py [--threads N] [--repeat N]

Three ways, in turn, the fastest of each: across documents (one causal kernel), with one bias for all layers (what
`dataset.isolate_documents` does), and one causal kernel for each document, which a dry run could not follow: its shapes
are those of the documents.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.model.attention import Attention
from meshwright.model.decoder import Decoder
from meshwright.model.init import init_weights
from meshwright.spec.model import ModelSpec
from meshwright.spec.presets import preset

SMALL, LARGER = preset("llama-2m"), replace(preset("llama-124m"), num_layers=2)
CASES = (
    ("llama-2m, the quickstart's batch", SMALL, 4, 256, 400),
    ("llama-2m, long samples", SMALL, 1, 2048, 400),
    ("2 layers of llama-124m", LARGER, 2, 512, 400),
)
"""Model, sequences, their tokens, and tokens of a document on average (lengths are exponential)."""


def batch(spec: ModelSpec, sequences: int, length: int, document: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, labels and positions, int64 [sequences, length]."""
    random = np.random.default_rng(0)
    begins = torch.from_numpy(random.random((sequences, length)) < 1 / document)
    begins[:, 0] = True
    place = torch.arange(length).expand(sequences, length)
    ids = torch.from_numpy(random.integers(0, spec.vocab_size, (sequences, length)))
    return ids, ids.roll(-1, dims=1), place - torch.where(begins, place, 0).cummax(dim=1).values


def each_document(positions: Tensor) -> Callable[..., Tensor]:
    """Attention as one causal kernel for each document."""
    starts = [[*(row == 0).nonzero().flatten().tolist(), len(row)] for row in positions]

    def attend(_self: Attention, q: Tensor, k: Tensor, v: Tensor, _bias: Tensor | None) -> Tensor:
        rows = []
        for number, borders in enumerate(starts):
            lengths = np.diff(borders).tolist()
            parts = (part[number : number + 1].split(lengths, dim=2) for part in (q, k, v))
            rows.append(torch.cat([causal(*heads) for heads in zip(*parts, strict=True)], dim=2))
        return torch.cat(rows)

    return attend


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over one document."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def seconds(model: Decoder, *arguments: Tensor) -> float:
    """CPU seconds of one forward and backward pass."""
    started = time.process_time()
    model(*arguments).backward()
    model.zero_grad()
    return time.process_time() - started


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    parser.add_argument("--repeat", type=int, default=9, help="passes of each way (default: 9)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name, spec, sequences, length, document in CASES:
        model = Decoder(spec, seq_length=length)
        init_weights(model, spec, 0)
        tokens, labels, positions = batch(spec, sequences, length, document)
        own, alone = Attention._attend, each_document(positions)
        found: dict[str, list[float]] = {"joined": [], "bias": [], "segments": []}
        for _ in range(args.repeat):
            found["joined"].append(seconds(model, tokens, labels))
            found["bias"].append(seconds(model, tokens, labels, positions))
            Attention._attend = alone  # type: ignore[method-assign]
            found["segments"].append(seconds(model, tokens, labels))
            Attention._attend = own  # type: ignore[method-assign]
        best = {way: min(times) for way, times in found.items()}
        documents = int((positions == 0).sum())
        print(
            f"{name:34s} {sequences} x {length} tokens, {documents} documents: joined {best['joined']:.3f} s, "
            f"bias {best['bias'] / best['joined']:.2f} x, segments {best['segments'] / best['joined']:.2f} x"
        )


if __name__ == "__main__":
    main()
