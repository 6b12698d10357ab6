"""Ending a run before its last step on request: by SIGTERM, by SIGUSR1, or by a file.

A request reaches one rank or several, at any moment. All ranks must make the same number of steps, so they agree: in
each step every rank tells what it knows and hears what was told in the step before, without waiting.
"""

import signal
from pathlib import Path

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class StopSignals:
    """The signals that ask this process to stop. Nothing is noted, and nothing caught, before `catch`."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def catch(self, *signals: signal.Signals) -> None:
        """Note these signals (all of `SIGNALS` by default) instead of dying of them. In the main thread only."""
        for number in signals or SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.received = signal.Signals(number)


class StopRequest:
    """What the ranks know about a wish to stop. All of them make one, and call `exchange` once in each step.

    Args:
        signals: of this process.
        file: its presence asks to stop; looked at by the first rank.
    """

    def __init__(self, signals: StopSignals, file: Path) -> None:
        self._signals, self._file = signals, file
        self._first = dist.get_rank() == 0
        self._reasons = [None, f"the file {file}", *(number.name for number in SIGNALS)]
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
            return self._reasons.index(self._signals.received.name)
        return int(self._first and self._file.exists())
