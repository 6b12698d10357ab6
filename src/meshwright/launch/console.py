"""The launcher's terminal: relayed lines, and below them a progress bar where there is a terminal to draw on."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

# Metrics of the bar: name in the metrics file, label, format.
_SHOWN = (
    ("train/loss", "loss", "{:.4f}"),
    ("train/grad_norm", "grad norm", "{:.3f}"),
    ("speed/tokens_per_s", "tokens/s", "{:,.0f}"),
    ("memory/peak_gib", "GiB", "{:.2f}"),
)


class MetricsTail:
    """The latest records appended to a JSONL file since this object was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = ""
        self.latest: dict[str, Any] = {}

    def read(self) -> bool:
        """Take in new records; later values win. Returns whether there were any."""
        try:
            with self._path.open() as file:
                if self._path.stat().st_size < self._offset:
                    self._offset, self._rest = 0, ""
                file.seek(self._offset)
                new = file.read()
                self._offset = file.tell()
        except OSError:
            return False
        *lines, self._rest = (self._rest + new).split("\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                self.latest.update(record if isinstance(record, dict) else {})
        return bool(lines)

    def summary(self) -> str:
        """``loss 3.2140  grad norm 0.871  tokens/s 41,200  GiB 1.52``: those that the file has."""
        shown = [
            f"{label} {form.format(self.latest[name])}"
            for name, label, form in _SHOWN
            if isinstance(self.latest.get(name), int | float)
        ]
        return "  ".join(shown)


class Console:
    """Prints lines one at a time; on a terminal keeps a bar with step, time left and metrics under them."""

    def __init__(self, metrics_file: Path | None, total_steps: int | None) -> None:
        self._metrics = MetricsTail(metrics_file) if metrics_file else None
        self._bar = _make_bar() if self._metrics and sys.stdout.isatty() else None
        self._task = self._bar.add_task("step", total=total_steps, metrics="") if self._bar else None

    @property
    def draws_bar(self) -> bool:
        return self._bar is not None

    def start(self) -> None:
        if self._bar:
            self._bar.start()

    def stop(self) -> None:
        if self._bar:
            self._bar.stop()

    def line(self, text: str) -> None:
        # A reader that went away (| head) must not end the training.
        with contextlib.suppress(OSError, ValueError):
            if self._bar:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()

    def tick(self) -> None:
        """Bring the bar up to the metrics file."""
        if self._bar is None or self._metrics is None or self._task is None or not self._metrics.read():
            return
        step = self._metrics.latest.get("step")
        if isinstance(step, int):
            self._bar.update(self._task, completed=step, metrics=self._metrics.summary())


def _make_bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
        refresh_per_second=4,
    )
