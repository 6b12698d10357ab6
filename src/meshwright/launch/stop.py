"""Signals that ask a launcher to stop go on to its ranks, which finish their step and save."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable

PATIENCE_SECONDS = 600.0


class StopForwarder:
    """A signal handler: the first signal goes to the ranks, which end by themselves; a second SIGTERM ends them.

    Attributes:
        asked: the signal that was passed on; None before.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked: signal.Signals | None = None
        self._say = say
        self._patience: threading.Timer | None = None

    def __call__(self, number: int, frame: object) -> None:
        ranks = _ranks()
        if not ranks or (number == signal.SIGTERM and self.asked == signal.SIGTERM):
            from torch.distributed.elastic.multiprocessing import SignalException

            raise SignalException(f"got {signal.Signals(number).name}", sigval=signal.Signals(number))
        self.asked = signal.Signals(number)
        if number == signal.SIGTERM:
            self._start_patience()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, number)
        self._say(
            f"{self.asked.name}: the ranks finish their step and save; Ctrl-C or another SIGTERM ends them at once"
        )

    def _start_patience(self) -> None:
        self._patience = threading.Timer(PATIENCE_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
        self._patience.daemon = True
        # A second signal that raised while the thread starts would leave threading's tables broken.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._patience.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """Nothing more will be passed on."""
        if self._patience is not None:
            self._patience.cancel()


def _ranks() -> list[int]:
    """Processes that this one launched as ranks."""
    import psutil

    me = str(os.getpid())
    ranks = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            environment = child.environ()
            if environment.get("MESHWRIGHT_LAUNCHER") == me and "RANK" in environment:
                ranks.append(child.pid)
    return ranks
