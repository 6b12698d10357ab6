"""Whole runs of the trainer on real ranks: a corpus, a config, and what a run came to."""

import functools
import hashlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import yaml
from torch import Tensor

from meshwright.config.load import load_config
from meshwright.config.run import resolve
from meshwright.data.dataset import TokenDataset
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loader import Batch
from meshwright.data.order import Int64s, SampleOrder
from meshwright.parallel.devices import KINDS
from meshwright.parallel.tensor import local
from meshwright.train.nonfinite import NonFiniteError
from meshwright.train.stopping import StopSignals
from meshwright.train.trainer import Trainer
from parity import whole

VOCAB, SEQ_LENGTH, SAMPLES, GLOBAL_BATCH = 97, 16, 100, 8

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "dp2": {"data_parallel": 2},
    "dp2_zero1": {"data_parallel": 2, "zero_stage": 1},
    "dp2_zero3": {"data_parallel": 2, "zero_stage": 3},
    "dp4": {"data_parallel": 4},
    "dp4_zero3": {"data_parallel": 4, "zero_stage": 3},
    "tp2": {"model_parallel": 2},
    "tp2_seq": {"model_parallel": 2, "use_seq_parallel": True},
    "pp2": {"pipeline_stage": 2},
    "pp2_data_inside": {
        "pipeline_stage": 2,
        "data_parallel": 2,
        "mesh_order": ["pipeline", "model", "context", "data"],
    },
    "dp2tp2": {"data_parallel": 2, "model_parallel": 2},
    "dp2tp2_zero2_seq": {"data_parallel": 2, "model_parallel": 2, "zero_stage": 2, "use_seq_parallel": True},
    "dp2pp2_zero1": {"data_parallel": 2, "pipeline_stage": 2, "zero_stage": 1},
    "tp2pp2": {"model_parallel": 2, "pipeline_stage": 2},
}


def write_corpus(prefix: Path, samples: int = SAMPLES, seed: int = 0) -> Path:
    """A token file whose windows of `SEQ_LENGTH` begin with their own sample number, in two digits of base `VOCAB`."""
    rng = np.random.default_rng(seed)
    # Every token is the one before plus a small step: something to learn.
    stream = np.cumsum(rng.integers(1, 4, samples * SEQ_LENGTH + 1)) % VOCAB
    numbers = np.arange(samples)
    stream[numbers * SEQ_LENGTH], stream[numbers * SEQ_LENGTH + 1] = numbers % VOCAB, numbers // VOCAB
    with IndexedWriter(prefix, vocab_size=VOCAB) as writer:
        for part in np.array_split(stream, 7):
            writer.add_document(part)
    return prefix


def write_config(folder: Path, layout: str = "one", **sections: Any) -> Path:
    """A config beside its corpora. ``sections`` add to the sections of the same name or replace plain values."""
    for name, samples in (("train", SAMPLES), ("held_out", 13)):
        if not (folder / f"{name}.idx").exists():
            write_corpus(folder / name, samples, seed=len(name))
    values: dict[str, Any] = {
        "seed": 7,
        "output_dir": str(folder / "out"),
        "model": {
            "num_layers": 4,
            "hidden_size": 32,
            "num_heads": 4,
            "num_kv_heads": 2,
            "intermediate_size": 48,
            "vocab_size": VOCAB,
        },
        "parallel_config": LAYOUTS[layout],
        "train": {"seq_length": SEQ_LENGTH, "micro_batch_size": 2, "global_batch_size": GLOBAL_BATCH, "train_steps": 6},
        "optimizer": {"learning_rate": 0.01, "eps": 1.0e-5},
        "lr_schedule": {"type": "cosine", "warmup_steps": 2},
        "dataset": {"paths": [str(folder / "train")]},
        "monitor": {"tensorboard": False},
    }
    for key, value in sections.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    path = folder / f"{layout}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def ranks_of(layout: str) -> int:
    """Ranks that a layout needs."""
    ways = LAYOUTS[layout]
    return ways.get("data_parallel", 1) * ways.get("model_parallel", 1) * ways.get("pipeline_stage", 1)


class InterruptedRun(Exception):
    """What a test stops a run with."""


class MaskedData:
    """A data set some of whose samples have no supervised token."""

    def __init__(self, data: TokenDataset, masked: tuple[int, ...]) -> None:
        self.data, self.masked, self.num_samples = data, masked, data.num_samples

    def order(self, seed: int) -> SampleOrder:
        return self.data.order(seed)

    def note(self) -> str:
        return ""

    def batch(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        tokens, labels = self.data.batch(samples)
        labels[np.isin(samples, self.masked)] = -100
        return tokens, labels


class HangingData(MaskedData):
    """A data set that hangs when its third batch is read."""

    batches = 0

    def batch(self, samples: Int64s) -> tuple[Int64s, ...]:
        self.batches += 1
        if self.batches == 3:
            time.sleep(4)
        return super().batch(samples)


@dataclass(frozen=True, kw_only=True)
class Spoil:
    """A value written into a weight (all of it or one row) of one rank right before a step."""

    rank: int
    parameter: str
    value: float
    step: int = 3
    row: int | None = None


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What happens to a run from outside.

    Attributes:
        stop_after: raise once this step has been reported, and saved where it is saved.
        masked: samples without supervised tokens.
        hangs: the rank whose data hangs in step 3.
        scale: loss scale set right before step 3.
        compile_backend: what ``torch.compile`` uses.
        stop_file_at: the step in which somebody makes the file that asks to stop.
        stop_signal_at: (rank, step): that rank gets SIGTERM in that step.
    """

    stop_after: int | None = None
    masked: tuple[int, ...] = ()
    hangs: int | None = None
    spoil: Spoil | None = None
    scale: float | None = None
    compile_backend: str | None = None
    stop_file_at: int | None = None
    stop_signal_at: tuple[int, int] | None = None


class DisturbedTrainer(Trainer):
    """The trainer, noting the samples of each step and the weights before it."""

    def __init__(self, disturbance: Disturbance, run: Any, **devices: Any) -> None:
        super().__init__(run, **devices)
        self.disturbance = disturbance
        self.samples: list[list[int]] = []
        self.digests: list[str] = []
        if disturbance.masked:
            self.data = MaskedData(self.data, disturbance.masked)  # type: ignore[assignment]
        if disturbance.hangs == dist.get_rank():
            self.data = HangingData(self.data, ())  # type: ignore[assignment]

    def _to_device(self, batch: Batch) -> Batch:
        if self.state.model.training:
            step = self.counters.step + 1
            spoil = self.disturbance.spoil
            if spoil is not None and spoil.step == step and spoil.rank == dist.get_rank():
                weight = local(self.state.optimizer.parameters[spoil.parameter].detach())
                (weight if spoil.row is None else weight[spoil.row]).fill_(spoil.value)
            if self.disturbance.scale is not None and step == 3:
                self.state.loss_scale.scale.fill_(self.disturbance.scale)
            if self.disturbance.stop_file_at == step and self.first:
                self.folder.stop.touch()
            if self.disturbance.stop_signal_at == (dist.get_rank(), step):
                os.kill(os.getpid(), signal.SIGTERM)
            self.samples.append((batch.tokens[:, 0] + VOCAB * batch.tokens[:, 1]).tolist())
            self.digests.append(self.digest())
        return super()._to_device(batch)

    def digest(self) -> str:
        """Of the bits of this rank's weights."""
        weights = self.state.optimizer.parameters.values()
        parts = [local(p.detach()).contiguous().view(torch.uint8).numpy().tobytes() for p in weights]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def _settle(self, pending: Any) -> None:
        super()._settle(pending)
        if not self._boundary(pending.step):
            self._stop(pending.step)

    def _at_boundary(self, step: int) -> None:
        super()._at_boundary(step)
        self._stop(step)

    def _stop(self, step: int) -> None:
        if step == self.disturbance.stop_after:
            raise InterruptedRun(f"after step {step}")


@dataclass(kw_only=True)
class Outcome:
    """What one rank saw of a run.

    Attributes:
        data_rank: which slice of each global batch it read.
        samples: sample numbers of its slice, per step.
        digests: of its weights before each step, and at the end.
        error: message of the NonFiniteError that ended it.
        stopped: whether it ended before its last step because it was asked to.
    """

    data_rank: int
    samples: list[list[int]]
    digests: list[str]
    weights: dict[str, Tensor] = field(default_factory=dict)
    error: str | None = None
    stopped: bool = False


def train(config: Path, overrides: tuple[str, ...] = (), disturbance: Disturbance | None = None) -> Outcome:
    """Train on this rank."""
    disturbance = disturbance or Disturbance()
    if disturbance.compile_backend is not None:
        torch.compile = functools.partial(torch.compile, backend=disturbance.compile_backend)  # type: ignore[assignment]
    run = resolve(load_config(config, overrides), dist.get_world_size())
    signals = StopSignals()
    # The test house wants SIGUSR1 for itself.
    signals.catch(signal.SIGTERM)
    trainer = DisturbedTrainer(disturbance, run, kind=KINDS["cpu"], device=torch.device("cpu"), signals=signals)
    outcome = Outcome(data_rank=trainer.state.mesh.zero_rank, samples=trainer.samples, digests=trainer.digests)
    try:
        outcome.stopped = trainer.fit()
    except NonFiniteError as error:
        outcome.error = str(error)
    outcome.digests.append(trainer.digest())
    outcome.weights = {name: whole(p) for name, p in trainer.state.optimizer.parameters.items()}
    return outcome


def global_samples(outcomes: list[Outcome]) -> list[list[int]]:
    """Sample numbers of each global batch, in order."""
    slices = {outcome.data_rank: outcome.samples for outcome in outcomes}
    return [list(chain(*parts)) for parts in zip(*(slices[rank] for rank in sorted(slices)), strict=True)]


def all_metrics(output_dir: Path) -> list[dict[str, float]]:
    """All lines of a run's metrics."""
    return [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]


def metrics(output_dir: Path) -> list[dict[str, float]]:
    """The lines of steps and evaluations, without those of saves."""
    return [line for line in all_metrics(output_dir) if not any(name.startswith("checkpoint/") for name in line)]


def by_step(output_dir: Path, *names: str) -> dict[int, tuple[float | None, ...]]:
    """Chosen metrics of each step; a step that was made twice must have come to the same both times."""
    found: dict[int, tuple[float | None, ...]] = {}
    for line in metrics(output_dir):
        if "train/lr" in line:
            values = tuple(line.get(name) for name in names)
            assert found.setdefault(int(line["step"]), values) == values, line["step"]
    return found
