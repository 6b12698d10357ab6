"""The hidden directory beside a corpus in which it is made, and the step that gives all files their names."""

import contextlib
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from meshwright.data.errors import DataError


def workplace_path(output: Path) -> Path:
    """Where the work for ``output`` is done."""
    return output.parent / f".{output.name}.partial"


@contextlib.contextmanager
def workplace(output: Path, *, keep: str) -> Iterator[Path]:
    """An exclusive directory beside the output, removed at the end.

    Where the work failed or was killed, directories that match the pattern ``keep`` stay: finished parts to go on from.

    Raises:
        DataError: another process works there.
    """
    directory = workplace_path(output)
    directory.mkdir(parents=True, exist_ok=True)
    with _lock(directory):
        done = False
        try:
            yield directory
            done = True
        finally:
            kept = () if done else [path for path in directory.glob(keep) if any(path.iterdir())]
            for path in directory.iterdir():
                if path not in kept:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not kept:
                directory.rmdir()


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Held until the end of the block, or of the process, however it ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataError(f"{directory}: another process prepares this corpus") from None
    finally:
        os.close(descriptor)


def commit(staged: Sequence[Path], final: Sequence[Path]) -> None:
    """Give the staged files their final names, in order; final files that have no staged one are removed first."""
    with _uninterrupted():
        for path in reversed(final):
            path.unlink(missing_ok=True)
        for source, target in zip(staged, final, strict=True):
            if source.exists():
                os.replace(source, target)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        pending.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        raise KeyboardInterrupt
