"""Ending a run before its last step on request: by SIGTERM, by SIGUSR1, or by a file.

A request reaches one rank or several, at any moment. All ranks must make the same number of steps, so they agree: in
each step every rank tells what it knows and hears what was told in the step before, without waiting.
"""

import signal
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.launch.signals import WISHES, Wish, listen

LAUNCHER = "the launcher"


class StopSignals:
    """The signals that ask this process to stop. Nothing is noted, and nothing caught, before `catch`.

    Attributes:
        received: who asked first: the name of a signal, or the launcher; None before.
    """

    def __init__(self) -> None:
        self.received: str | None = None

    def catch(self, *numbers: signal.Signals) -> None:
        """Note these signals (SIGTERM and SIGUSR1 by default) instead of dying of them. In the main thread only."""
        listen(self._note, *numbers)

    def _note(self, wish: Wish) -> None:
        self.received = self.received or (LAUNCHER if wish.from_launcher else wish.signal.name)


class StopRequest:
    """What the ranks know about a wish to stop. All of them make one, and call `exchange` once in each step.

    Args:
        signals: of this process.
        file: its presence asks to stop; looked at by the first rank.
    """

    def __init__(self, signals: StopSignals, file: Path) -> None:
        self._signals, self._file = signals, file
        self._first = dist.get_rank() == 0
        self._reasons = [None, f"the file {file}", LAUNCHER, *(number.name for number in WISHES)]
        # On the host: nothing in a step may wait for the device.
        self._group = dist.new_group(backend="gloo")
        self._told = torch.zeros((), dtype=torch.int64)
        self._message: dist.Work | None = None

    def exchange(self) -> str | None:
        """What the ranks agreed on in the step before, the same on all: why to stop, or None to go on."""
        agreed = self.hear()
        self._told = torch.tensor(self._known())
        self._message = dist.all_reduce(self._told, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def hear(self) -> str | None:
        """What was agreed on in the last exchange."""
        if self._message is None:
            return None
        self._message.wait()
        self._message = None
        return self._reasons[int(self._told)]

    def fulfilled(self) -> None:
        """Remove the file, so that the run can go on."""
        if self._first:
            self._file.unlink(missing_ok=True)

    def _known(self) -> int:
        if self._signals.received is not None:
            return self._reasons.index(self._signals.received)
        return int(self._first and self._file.exists())
