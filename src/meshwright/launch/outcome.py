"""How a launch ended: the first cause, what followed from it, and the text that says so."""

import signal
from dataclasses import dataclass
from pathlib import Path

from meshwright.launch.failure import Failure, place
from meshwright.launch.neighbours import News
from meshwright.launch.signals import ENDED_CODE

LOG_TAIL_LINES = 15
# The agent ends ranks with SIGTERM at once and SIGKILL half a minute later; a SIGKILL later than this after
# the first death is its own.
OWN_KILL_SECONDS = 10
_ENDED = (ENDED_CODE, -signal.SIGTERM, -signal.SIGUSR1)


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended. ``exit_code`` is negative for a signal; ``time`` is seconds since the epoch.

    ``step`` and ``phase`` are the last ones the rank noted, for one that died without a record.
    """

    rank: int
    exit_code: int
    time: float
    log: Path
    failure: Failure | None = None
    step: int | None = None
    phase: str | None = None

    def how(self) -> str:
        """The error in one line."""
        if self.failure:
            return self.failure.error.partition("\n")[0]
        if self.exit_code == ENDED_CODE:
            return "ended by a signal"
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code} without saying why"
        name = signal.Signals(-self.exit_code).name
        if self.exit_code == -signal.SIGKILL:
            return f"killed by {name}: usually the kernel's out-of-memory killer (see dmesg) or an operator"
        return f"killed by {name}"

    @property
    def was_ended(self) -> bool:
        """Whether a wish to stop ended the rank before it listened to any, or took its peers away."""
        return self.failure.communication if self.failure else self.exit_code in _ENDED

    def where(self) -> str:
        """Rank, step and phase as far as they are known."""
        return self.failure.where() if self.failure else place(self.rank, self.step, self.phase)


@dataclass(frozen=True, kw_only=True)
class ExitReport:
    """How the ranks of this node ended.

    Attributes:
        code: 0 done, 1 failed, 128 + signal number when stopped by a signal (130 for Ctrl-C).
        cause: the rank that failed first, and not for the loss of another; None when none did.
        consequences: the other ranks of this node that ended because of it.
        elsewhere: the first cause as another node told it.
        refused: why the ranks were not started.
    """

    code: int
    log_dir: Path
    cause: RankEnd | None = None
    consequences: tuple[RankEnd, ...] = ()
    elsewhere: News | None = None
    refused: str | None = None
    stopped_by: signal.Signals | None = None

    @property
    def lost_a_peer(self) -> bool:
        """Whether the first cause on this node is the loss of a rank, which may be on another node."""
        return bool(self.cause and self.cause.failure and self.cause.failure.communication)


def first_cause(ends: list[RankEnd]) -> tuple[RankEnd, tuple[RankEnd, ...]]:
    """The earliest end that no other rank explains, and the rest. Needs at least one."""
    first = min(end.time for end in ends)
    ordered = sorted(ends, key=lambda end: (_remoteness(end, first), end.time, end.rank))
    return ordered[0], tuple(sorted(ordered[1:], key=lambda end: end.rank))


def _remoteness(end: RankEnd, first: float) -> int:
    """0: went wrong itself; 1: lost a peer; 2: was ended by the launcher."""
    if end.failure:
        return 1 if end.failure.communication else 0
    if end.exit_code in _ENDED:
        return 2
    if end.exit_code == -signal.SIGKILL and end.time - first > OWN_KILL_SECONDS:
        return 2
    return 0


def describe(report: ExitReport) -> str:
    """The last lines on the screen: consequences in one line, then traceback, rank, step, phase, cause, log."""
    if report.stopped_by is not None:
        how = "Ctrl-C" if report.stopped_by == signal.SIGINT else report.stopped_by.name
        return f"stopped by {how}; all ranks have ended"
    if report.refused is not None:
        return report.refused
    if report.elsewhere is not None:
        return f"the ranks of this node were ended because another node failed:\n{report.elsewhere.text}"
    if report.cause is None:
        return ""
    lines = [_others(report.cause, report.consequences)] if report.consequences else []
    lines.append(_evidence(report.cause))
    lines.append(f"first cause: {report.cause.where()}: {report.cause.how()}")
    lines.append(f"log of rank {report.cause.rank}: {report.cause.log}")
    return "\n".join(lines)


def _others(cause: RankEnd, others: tuple[RankEnd, ...]) -> str:
    same = [end.rank for end in others if end.failure and cause.failure and end.how() == cause.how()]
    rest = [end.rank for end in others if end.rank not in same]
    parts = []
    if same:
        parts.append(f"{_ranks(same)} failed with the same error")
    if rest:
        parts.append(f"{_ranks(rest)} ended as a consequence (lost a peer, or stopped by the launcher)")
    return "; ".join(parts)


def _evidence(end: RankEnd) -> str:
    if end.failure:
        return end.failure.traceback.rstrip()
    try:
        lines = end.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        lines = []
    return "\n".join([f"last lines of rank {end.rank}:", *(f"  {line}" for line in lines or ["(none)"])])


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
