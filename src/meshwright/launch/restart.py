"""Whether ranks that failed are started again, from where, and what is told of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.launch.outcome import ExitReport, RankEnd

RESTART_FROM = "MESHWRIGHT_RESTART_FROM"
"""Environment variable of restarted ranks: the checkpoint to go on from, whatever ``checkpoint.resume`` says."""

# Devices that a new process finds healthy again: the driver retires the bad memory, or resets the link.
_DEVICE_FAULTS = ("uncorrectable ecc error", "uncorrectable nvlink error", "hardware stack error")
_LOST_PROCESS = "ended by signal"


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How a launch goes on after a failure.

    Attributes:
        max_restarts: how often the ranks may be started again.
        saved: the newest complete checkpoint that was saved since the launch.
        fit: the layout on a number of ranks, in words; raises LaunchError where there is none.
        command: what goes on with the run later.
    """

    max_restarts: int = 0
    saved: Callable[[], Path | None] = field(default=lambda: None)
    fit: Callable[[int], str | None] = field(default=lambda ranks: None)
    command: str | None = None


NO_RECOVERY = Recovery()


def curable(report: ExitReport) -> bool:
    """Whether starting the ranks again can help.

    It can where a process was killed or crashed (a signal ended it), where a peer was lost, and after faults of a
    device that its driver mends. It cannot where a rank raised an error of its own or left by itself: a wrong config, a
    loss that is not finite, out of device memory, a full disk, wrong code come back at the same step.
    """
    if report.elsewhere is not None:
        return report.elsewhere.curable
    return report.cause is not None and _curable(report.cause)


def _curable(end: RankEnd) -> bool:
    if end.failure is None:
        return end.exit_code < 0
    error = end.failure.error.lower()
    return end.failure.communication or any(text in error for text in (*_DEVICE_FAULTS, _LOST_PROCESS))


def cause_line(report: ExitReport) -> str:
    """The first cause in one line."""
    if report.elsewhere is not None:
        lines = report.elsewhere.text.splitlines()
        return next((line for line in lines if line.startswith("first cause: ")), lines[-1]).removeprefix(
            "first cause: "
        )
    assert report.cause is not None
    return f"{report.cause.where()}: {report.cause.how()}"


def history(causes: list[str], max_restarts: int) -> str:
    """What the restarts of a run were for; empty without any."""
    if not causes:
        return ""
    head = f"restarts: {len(causes)} of {max_restarts}, after"
    return "\n".join([head, *(f"  {number}. {cause}" for number, cause in enumerate(causes, 1))])


def restart_line(number: int, max_restarts: int, start: str | None) -> str:
    """What the next start goes on from, and how many are left."""
    where = f"going on from {start}" if start else "no checkpoint was saved yet: starting as before"
    left = max_restarts - number
    return f"restart {number} of {max_restarts}: {where}; {left} more {'is' if left == 1 else 'are'} allowed"
