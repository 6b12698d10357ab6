"""What a peer's worker is asked to do and what it answers. Runs inside the peers' environments: no meshwright."""

import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch


@dataclass(frozen=True)
class Job:
    """One measurement. ``tokens`` is a file of uint16 ids; sample i is ids [i * seq_length, ... + 1]."""

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    seq_length: int
    micro_batch_size: int
    steps: int
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    grad_clip: float
    precision: str
    compile: bool
    tokens: str
    folder: str
    result: str

    @property
    def samples(self) -> int:
        return self.steps * self.micro_batch_size


def read_job() -> Job:
    return Job(**json.loads(Path(sys.argv[1]).read_text()))


def write_result(job: Job, step_seconds: list[float], losses: list[float], model: torch.nn.Module) -> None:
    """``step_seconds``: wall clock from one optimizer step's end to the next, data loading included."""
    unique = {id(p): p for p in model.parameters()}.values()
    if not all(math.isfinite(loss) for loss in losses):
        raise SystemExit(f"loss is not finite: {losses}")
    result = {
        "step_seconds": step_seconds,
        "losses": losses,
        "parameters": sum(p.numel() for p in unique),
        "weights": str(next(iter(unique)).dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    Path(job.result).write_text(json.dumps(result))


class Samples(torch.utils.data.Dataset):
    """int64 [seq_length + 1] each, in file order; ``times`` has the clock at every sample fetched."""

    def __init__(self, job: Job, count: int) -> None:
        self.length = job.seq_length
        self.ids = torch.from_numpy(np.fromfile(job.tokens, dtype=np.uint16).astype(np.int64))
        self.count = count
        self.times: list[float] = []
        available = (len(self.ids) - 1) // self.length
        if count > available:
            raise SystemExit(f"{job.tokens} holds {available} samples, {count} are needed")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.times.append(time.perf_counter())
        return self.ids[index * self.length : (index + 1) * self.length + 1]
