"""A profiler trace of chosen steps."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self


class StepProfiler:
    """Traces optimizer steps ``first`` to ``last`` into ``folder/rank<N>.json``, for chrome://tracing or Perfetto.

    Args:
        steps: first and last step, or None to trace nothing.
        first_step: the step that the run starts with.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: Path, rank: int, *, first_step: int = 1) -> None:
        self._steps, self._file = steps, folder / f"rank{rank}.json"
        self._first_step = first_step
        self._profiler: Any = None

    def __enter__(self) -> Self:
        if self._steps is not None and self._steps[0] <= self._first_step <= self._steps[1]:
            self._start()
        return self

    def step(self, step: int) -> None:
        """Tell that a step has been made."""
        if self._steps is None:
            return
        first, last = self._steps
        if self._profiler is None and first <= step + 1 <= last:
            self._start()
        elif self._profiler is not None and step >= last:
            self._stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._profiler is not None:
            self._stop()

    def _start(self) -> None:
        from torch.profiler import profile

        self._profiler = profile(record_shapes=True)
        self._profiler.start()

    def _stop(self) -> None:
        self._profiler.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self._file))
        self._profiler = None
