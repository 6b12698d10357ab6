"""Wishes to stop go from a launcher on to its ranks, which finish their step and save; news of a failure ends them."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

PATIENCE_SECONDS = 600.0


class StopForwarder:
    """A signal handler: the first signal goes to the ranks, which end by themselves; a second SIGTERM ends them.

    Ranks get it as SIGUSR1: SIGTERM from their launcher ends them at once (see `signals`).

    Attributes:
        asked: the signal that was passed on, or came while no ranks ran; None before.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked: signal.Signals | None = None
        self._say = say
        self._patience: threading.Timer | None = None
        self._running = False
        self._end = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While ranks run: signals may raise SignalException in the main thread inside the block only."""
        self._end, self._running = False, True
        try:
            yield
        finally:
            self._running = False

    def end(self) -> None:
        """End the ranks at once, if they run; from any thread."""
        self._end = True
        os.kill(os.getpid(), signal.SIGTERM)

    def ask(self) -> None:
        """Ask the ranks to finish their step, save and end."""
        for rank in _ranks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGUSR1)

    def __call__(self, number: int, frame: object) -> None:
        ended, again = self._end, number == signal.SIGTERM == self.asked
        if not ended:
            self.asked = signal.Signals(number)
        if not self._running:
            return
        if ended or again or not _ranks():
            from torch.distributed.elastic.multiprocessing import SignalException

            raise SignalException(f"got {signal.Signals(number).name}", sigval=signal.Signals(number))
        if number == signal.SIGTERM:
            self._start_patience()
        self.ask()
        self._say(
            f"{signal.Signals(number).name}: the ranks finish their step and save; "
            "Ctrl-C or another SIGTERM ends them at once"
        )

    def _start_patience(self) -> None:
        self._patience = threading.Timer(PATIENCE_SECONDS, self.end)
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
