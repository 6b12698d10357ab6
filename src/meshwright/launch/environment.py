"""What the launcher reads from and puts into the environment, and how it takes signals."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from meshwright.launch.cores import usable_cores

RANK_LOG_LEVEL = "MESHWRIGHT_RANK_LOG_LEVEL"


def under_launcher() -> bool:
    """Whether this process is already a rank: started by torchrun, with RANK and WORLD_SIZE, or by us."""
    return "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE"} <= os.environ.keys()


def threads_per_rank(nproc_per_node: int) -> int:
    """Compute threads for each of the ranks on this node: the user's OMP_NUM_THREADS, else a fair share."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, usable_cores() // nproc_per_node)


@contextlib.contextmanager
def launcher_environment(nproc_per_node: int, draws_bar: bool) -> Iterator[None]:
    """What ranks inherit, taken back afterwards."""
    quiet_cpp_log()
    with variables(
        OMP_NUM_THREADS=str(threads_per_rank(nproc_per_node)),
        MESHWRIGHT_LAUNCHER=str(os.getpid()),
        MESHWRIGHT_PROGRESS_BAR="1" if draws_bar else "0",
    ):
        yield


def quiet_cpp_log() -> None:
    """Call before torch is imported in a launcher: its C++ log prints a stack for every peer that leaves.

    Ranks get the level back that was set before (see `rank_files`).
    """
    os.environ.setdefault(RANK_LOG_LEVEL, os.environ.get("TORCH_CPP_LOG_LEVEL", "WARNING"))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    """Environment variables set inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def handled_signals(handler: Callable[[int, object], None]) -> Iterator[None]:
    """``handler`` gets SIGTERM and SIGUSR1; the caller's handlers of all that launcher and agent take come back
    afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    before: dict[signal.Signals, Any] = {name: signal.getsignal(name) for name in names}
    for name in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(name, handler)
    try:
        yield
    finally:
        for name, old in before.items():
            signal.signal(name, signal.SIG_DFL if old is None else old)
