"""What a run reports, by one set of names, to the log, a JSONL file and TensorBoard."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from meshwright.config.run import Run
from meshwright.spec.flops import flops_per_token

STEP_LINE = (
    ("train/loss", "loss", "{:.4f}"),
    ("train/grad_norm", "gnorm", "{:.3f}"),
    ("train/lr", "lr", "{:.2e}"),
    ("speed/tokens_per_s", "tok/s", "{:,.0f}"),
    ("speed/mfu_pct", "mfu", "{:.1f}%"),
    ("memory/peak_gib", "mem", "{:.2f} GiB"),
    ("train/loss_scale", "scale", "{:g}"),
    ("train/skipped_steps", "skipped", "{:d}"),
    ("val/loss", "val loss", "{:.4f}"),
    ("val/ppl", "ppl", "{:.2f}"),
)


class Sink(Protocol):
    """Somewhere that metrics go."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        ...

    def close(self) -> None:
        """Write out everything."""
        ...


class JsonlSink:
    """One JSON object per line, written through at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line ``{"step": ..., name: value, ...}``."""
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardSink:
    """Scalars in TensorBoard's event files."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one scalar for each metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush the event file."""
        self._writer.close()


def step_line(step: int, total_steps: int, metrics: Mapping[str, float]) -> str:
    """``step 120/2000  loss 3.2140  gnorm 0.871 ...``: the metrics that the step has, in fixed order."""
    parts = [f"{label} {form.format(metrics[name])}" for name, label, form in STEP_LINE if name in metrics]
    eta = metrics.get("speed/eta_s")
    if eta is not None:
        parts.append(f"eta {duration(eta)}")
    return "  ".join([f"step {step}/{total_steps}", *parts])


def duration(seconds: float) -> str:
    """``1h02m``, ``3m05s`` or ``12s``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """What one step took: seconds in all, seconds of them waited for data, supervised tokens it trained on."""

    seconds: float
    waited: float
    supervised: float


class SpeedMeter:
    """Rates over the latest steps. Evaluation and checkpoints are no part of them.

    Args:
        tokens_per_step: of the global batch.
        devices: ranks of the run.
        flops_per_token: of the model, in the convention of the log.
        peak_flops: of one device, or None where it is not known.
        window: steps that a rate is taken over.
    """

    def __init__(
        self, *, tokens_per_step: int, devices: int, flops_per_token: float, peak_flops: float | None, window: int
    ) -> None:
        self._tokens, self._devices = tokens_per_step, devices
        self._flops, self._peak = flops_per_token, peak_flops
        self._steps: deque[StepTime] = deque(maxlen=window)

    def count(self, step: StepTime) -> None:
        """Take in one step."""
        self._steps.append(step)

    def read(self, steps_left: int) -> dict[str, float]:
        """Metrics of the latest steps; at least one must have been counted."""
        steps = len(self._steps)
        seconds = max(sum(step.seconds for step in self._steps), 1e-9)
        rate = self._tokens * steps / seconds
        flops = rate * self._flops / self._devices
        metrics = {
            "speed/tokens_per_s": rate,
            "speed/tokens_per_s_per_device": rate / self._devices,
            "speed/supervised_tokens_per_s": sum(step.supervised for step in self._steps) / seconds,
            "speed/step_ms": self._steps[-1].seconds * 1e3,
            "speed/data_wait_pct": 100 * sum(step.waited for step in self._steps) / seconds,
            "speed/tflops_per_device": flops / 1e12,
            "speed/eta_s": steps_left * seconds / steps,
        }
        if self._peak is not None:
            metrics["speed/mfu_pct"] = 100 * flops / self._peak
        return metrics


def speed_meter(run: Run, peak_flops: float | None) -> SpeedMeter:
    """The meter of a run, in the convention of the log: without the input embedding's parameters."""
    return SpeedMeter(
        tokens_per_step=run.train.tokens_per_step,
        devices=run.layout.world_size,
        flops_per_token=flops_per_token(run.model, run.train.seq_length, embedding=False),
        peak_flops=peak_flops,
        window=run.config.monitor.log_steps,
    )
