"""The side of `ranks.run_ranks` that runs in a rank. Imports torch only there."""

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    rank: int
    world_size: int
    call: bytes
    folder: str
    timeout: float


@dataclass(frozen=True)
class Failure:
    """Why a rank failed: its traceback, when (monotonic clock), and the error itself if it pickles."""

    rank: int
    time: float
    text: str
    error: bytes | None


def log_path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank{rank}.log"


def stack_path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank{rank}.stack"


def main(job: Job, pipe: Any) -> None:
    """Run one job and send its pickled result, or a Failure, through the pipe. Never returns."""
    code = 0
    _die_with_the_server()
    _redirect_output(job)
    try:
        pipe.send_bytes(pickle.dumps(pickle.dumps(_run(job))))
        _leave_together()
    except BaseException as error:
        code = 1
        pipe.send_bytes(pickle.dumps(_failure(job.rank, error)))
    sys.stdout.flush()
    sys.stderr.flush()
    # No interpreter shutdown: it takes longer than most tests, and hangs on a broken process group.
    os._exit(code)


def _run(job: Job) -> Any:
    import torch
    import torch.distributed as dist

    os.environ.update(
        RANK=str(job.rank),
        LOCAL_RANK=str(job.rank),
        WORLD_SIZE=str(job.world_size),
        LOCAL_WORLD_SIZE=str(job.world_size),
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    poison_uninitialised_memory()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(Path(job.folder) / "store"), job.world_size),
        rank=job.rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=job.timeout + 30),
    )
    fn, args, kwargs = pickle.loads(job.call)
    return fn(*args, **kwargs)


def poison_uninitialised_memory() -> None:
    """Fill memory that torch hands out uninitialised: NaN for floats, the largest value for integers.

    Covers empty, empty_like, empty_strided, new_empty and resize_ in Python and in C++, and storages grown
    from nothing (how FSDP brings parameters back).
    """
    import torch

    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[assignment]
    torch.use_deterministic_algorithms(True, warn_only=True)
    grow = torch.UntypedStorage.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        was_empty = self.nbytes() == 0
        out = grow(self, size)
        if was_empty and size and self.device.type == "cpu":
            self.fill_(0xFF)  # all ones is a NaN in every IEEE format
        return out

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]


def _leave_together() -> None:
    """No rank closes its sockets while another one still reads from them."""
    import torch.distributed as dist

    with contextlib.suppress(Exception):
        if dist.is_initialized():
            dist.barrier()


def _failure(rank: int, error: BaseException) -> Failure:
    text = "".join(traceback.format_exception(error))
    try:
        error.__traceback__ = None
        pickled: bytes | None = pickle.dumps(error)
        pickle.loads(pickled or b"")
    except Exception:
        pickled = None
    return Failure(rank, time.monotonic(), text, pickled)


def _redirect_output(job: Job) -> None:
    """Own files for output and for the stacks that SIGUSR1 asks for; stdout here is pytest's capture."""
    log = os.open(log_path(job.folder, job.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    stacks = open(stack_path(job.folder, job.rank), "w")  # noqa: SIM115 (open for the life of the process)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=sys.stderr)


def _die_with_the_server() -> None:
    """A killed pytest takes the fork server down with it; its ranks must follow (prctl PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
