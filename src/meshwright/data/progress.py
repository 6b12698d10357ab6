"""Progress of long data work: a bar on a terminal, a plain line now and then in a log."""

import contextlib
import sys
import time
from types import TracebackType
from typing import Any, Self

SECONDS_BETWEEN_LINES = 10.0


def tell(line: str) -> None:
    """Print a line on stderr, if somebody still reads it: no work ends because nobody does."""
    with contextlib.suppress(BrokenPipeError):
        print(line, file=sys.stderr, flush=True)


class Progress:
    """Progress over ``total`` bytes, on stderr; says nothing at all unless ``show``.

    ``pieces`` is what to say after the number of pieces done, such as ``of 7 shards``.
    """

    def __init__(self, title: str, total: int, *, pieces: str = "", show: bool) -> None:
        self._title, self._total, self._pieces, self._show = title, max(total, 1), pieces, show
        self._bar: Any = None
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        if self._show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
            from rich.progress import Progress as Bar

            columns = ("{task.description}", BarColumn(), "{task.fields[pieces]}", DownloadColumn())
            self._bar = Bar(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
            self._bar.start()
            self._bar.add_task(self._title, total=self._total, pieces="")
        elif self._show:
            tell(f"{self._title}: {self._total / 1e6:.1f} MB")
        return self

    def update(self, done: int, pieces: int = 0) -> None:
        """Tell how many bytes, and how many pieces, are done."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, pieces=self._of_pieces(pieces))
        elif self._show and time.monotonic() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            parts = (f"{self._title}: {done / self._total:.0%}", f"{done / 1e6:.1f} MB", self._of_pieces(pieces))
            tell(", ".join(filter(None, parts)))

    def _of_pieces(self, pieces: int) -> str:
        return f"{pieces} {self._pieces}" if self._pieces else ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
