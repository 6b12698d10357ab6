"""What can go wrong with a checkpoint, said so that every rank can say the same."""

from __future__ import annotations

import errno
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """One rank's exception, reduced to what survives a trip between processes."""

    rank: int
    cause: str
    errno: int | None = None
    refused: bool = False

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        """Describe ``error``; the class name is left out where the message is already for people."""
        if isinstance(error, CheckpointError):
            return cls(rank, str(error), refused=isinstance(error, CheckpointMismatch))
        code = error.errno if isinstance(error, OSError) else None
        return cls(rank, f"{type(error).__name__}: {error}", code)

    @property
    def disk_full(self) -> bool:
        return self.errno in (errno.ENOSPC, errno.EDQUOT)


class CheckpointError(RuntimeError):
    """A save or load that failed. The message is for people; ``failures`` names the ranks.

    ``needed`` is about the size in bytes of a save that failed, 0 where it is not known.
    """

    needed = 0

    def __init__(self, message: str, failures: tuple[Failure, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures


class CheckpointMismatch(CheckpointError):
    """A request that cannot be met: a checkpoint of another model, run or precision."""


class PeerLost(CheckpointError):
    """Another rank went away in the middle, so nothing can be agreed on any more."""


def failed(what: str, failures: list[Failure]) -> CheckpointError:
    """Join the ranks' failures into one error, lowest rank first, equal causes said once."""
    ranks_of: dict[str, list[int]] = {}
    for failure in failures:
        ranks_of.setdefault(failure.cause, []).append(failure.rank)
    parts = [f"{_ranks(ranks)}: {cause}" for cause, ranks in ranks_of.items()]
    kind = CheckpointMismatch if any(f.refused for f in failures) else CheckpointError
    return kind(f"{what} failed on " + "; on ".join(parts), tuple(failures))


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(r) for r in ranks[:8])
    return f"ranks {shown}{', ...' if len(ranks) > 8 else ''}"
