"""What SIGTERM and SIGUSR1 mean to a rank: a wish to stop, or, SIGTERM from the launcher, the end at once.

The launcher passes a wish on as SIGUSR1. SIGTERM from it is torch's agent ending the ranks that are left when one has
failed; these may be stuck in a collective, where the interpreter calls no signal handler. So all threads block both
signals, and one waits for them.
"""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

WISHES = (signal.SIGUSR1, signal.SIGTERM)
ENDED_CODE = 128 + signal.SIGTERM
"""Exit code of a rank that a signal ended in this way."""


@dataclass(frozen=True)
class Wish:
    """A signal that asks this rank to stop."""

    signal: signal.Signals
    from_launcher: bool


class SignalThread:
    """The thread that takes the signals of a rank. Until somebody listens, any of them ends the process."""

    def __init__(self, launcher: int) -> None:
        self.listener: Callable[[Wish], None] | None = None
        self._launcher = launcher

    def start(self) -> None:
        """Call before any other thread starts: a thread that does not block the signals would die of them."""
        signal.pthread_sigmask(signal.SIG_BLOCK, WISHES)
        threading.Thread(target=self._take, name="signals", daemon=True).start()

    def _take(self) -> None:
        while True:
            taken = signal.sigwaitinfo(WISHES)
            wish = Wish(signal.Signals(taken.si_signo), from_launcher=taken.si_pid == self._launcher)
            ends = wish.from_launcher and wish.signal == signal.SIGTERM
            if ends or self.listener is None:
                os._exit(ENDED_CODE)
            self.listener(wish)


_thread: SignalThread | None = None


def take_signals(launcher: int) -> None:
    """Start the thread, where the system has what it needs (Linux)."""
    global _thread
    if hasattr(signal, "sigwaitinfo"):
        _thread = SignalThread(launcher)
        _thread.start()


def listen(listener: Callable[[Wish], None], *numbers: signal.Signals) -> None:
    """Call ``listener`` for each wish to stop from now on, between two instructions of the main thread or in another.

    Call it in the main thread. Without the launcher's thread (under plain torchrun) ``numbers``, by default all of
    `WISHES`, are caught, and SIGTERM is a wish whoever sends it.
    """
    if _thread is not None:
        _thread.listener = listener
        return
    for number in numbers or WISHES:
        signal.signal(number, lambda taken, _: listener(Wish(signal.Signals(taken), from_launcher=False)))
