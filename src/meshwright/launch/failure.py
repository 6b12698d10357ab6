"""What a rank writes down when it fails, so that the launcher can tell the first cause from what followed.

The file is torchrun's error file (``TORCHELASTIC_ERROR_FILE``) with more keys: under plain torchrun the same
record makes torchrun name the right rank. Standard library only: it must work when torch itself is broken.
"""

import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from meshwright.launch import position

# How the loss of a peer reads in gloo, NCCL, HCCL, TCPStore and plain sockets.
_PEER_ERRORS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket closed",
    "socket timeout",
    "gloo/transport",
    "ncclremoteerror",
    "ncclsystemerror",
    "nccl communicator was aborted",
    "timed out waiting",
    "wait timeout",
    "failed to recv",
    "store->get",
)
_PEER_TYPES = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "BrokenPipeError",
    "ConnectionError",
    "PeerLost",
)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One rank's failure.

    Attributes:
        step: optimizer step, counted from 1, or None before the first.
        phase: what the rank was doing: ``start``, ``data``, ``forward``, ``optimizer``, ``checkpoint`` ...
        time: seconds since the epoch.
        communication: the error says that another rank was lost or late, not that this one went wrong.
    """

    rank: int
    step: int | None
    phase: str | None
    time: float
    error: str
    traceback: str
    communication: bool

    def where(self) -> str:
        """``rank 2, step 3, phase forward``, as far as it is known."""
        return place(self.rank, self.step, self.phase)


def place(rank: int, step: int | None, phase: str | None) -> str:
    """``rank 2, step 3, phase forward``; without a step yet, ``rank 2, phase start``."""
    return f"rank {rank}{'' if step is None else f', step {step}'}, phase {phase or 'start'}"


_position: tuple[int | None, str | None] = (None, None)


def set_position(step: int | None = None, phase: str | None = None) -> None:
    """Note where this rank is: failures recorded later get it, and so does a rank killed without a word.

    Costs about a microsecond: it may be called several times in every step.
    """
    global _position
    _position = (step, phase)
    position.write(step, phase)


def noted_position() -> tuple[int | None, str | None]:
    """The step and phase that were noted last."""
    return _position


def record_failure(
    exc: BaseException, rank: int | None = None, step: int | None = None, phase: str | None = None
) -> Failure:
    """Write down why this rank fails; the first record of a process stands. Call it before any clean-up.

    Without a launcher that reads the record, the traceback goes to stderr.
    """
    failure = Failure(
        rank=int(os.environ.get("RANK", "0")) if rank is None else rank,
        step=_position[0] if step is None else step,
        phase=phase or _position[1],
        time=time.time(),
        error=_message(exc),
        traceback="".join(traceback.format_exception(exc)),
        communication=is_communication_error(exc),
    )
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not Path(path).exists():
        write_failure(Path(path), failure)
    if "MESHWRIGHT_LAUNCHER" not in os.environ:
        sys.stderr.write(f"{failure.traceback}{failure.where()}: {failure.error}\n")
        sys.stderr.flush()
    return failure


def _message(exc: BaseException) -> str:
    """``ValueError: ...``; notes that were added to the error are part of its traceback and told there."""
    told = traceback.TracebackException.from_exception(exc)
    told.__notes__ = None
    return "".join(told.format_exception_only()).strip()


def is_communication_error(exc: BaseException) -> bool:
    """Whether an error, or one it was raised from, only says that a peer is gone or late."""
    seen: BaseException | None = exc
    while seen is not None:
        text = str(seen).lower()
        names = {kind.__name__ for kind in type(seen).__mro__}
        if names & set(_PEER_TYPES) or any(pattern in text for pattern in _PEER_ERRORS):
            return True
        seen = seen.__cause__
    return False


def write_failure(path: Path, failure: Failure) -> None:
    """Write a record in one rename: the launcher may read at any moment."""
    record = {
        "message": {
            "message": failure.error,
            "extraInfo": {"py_callstack": failure.traceback, "timestamp": str(int(failure.time))},
        },
        "meshwright": asdict(failure),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(record, indent=1))
    beside.replace(path)


def read_failure(path: Path) -> Failure | None:
    """The record in a file, or None where there is none or not one of ours."""
    try:
        return parse_failure(json.loads(path.read_text())["meshwright"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def parse_failure(values: dict[str, Any]) -> Failure:
    """A Failure from its JSON form. Raises KeyError where a field is missing."""
    return Failure(**{field.name: values[field.name] for field in fields(Failure)})
