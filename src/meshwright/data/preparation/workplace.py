"""The hidden directory beside a corpus in which it is made, and the step that gives all files their names."""

import contextlib
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType

from meshwright.data.errors import DataError
from meshwright.data.preparation.shards import PARTIAL

LOCK = "lock"


def workplace_path(output: Path) -> Path:
    """Where the work for ``output`` is done."""
    return output.parent / f".{output.name}.partial"


@contextlib.contextmanager
def workplace(output: Path, *, shared: bool = False) -> Iterator[Path]:
    """The directory beside the output that holds those of the stages, removed at the end.

    Where the work failed or was killed, what is finished stays, to go on from. A ``shared`` workplace has room for
    several processes, on several machines; none of them removes anything.

    Raises:
        DataError: another process works there, and one of the two wants it for itself.
    """
    directory = workplace_path(output)
    with _lock(directory, shared):
        if shared:
            yield directory
            return
        _remove_partial(directory)
        try:
            yield directory
        except BaseException:
            _remove_partial(directory)
            if all(path.name == LOCK for path in directory.iterdir()):
                _remove(directory)
            raise
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove a workplace, the lock last: until then nobody else begins there."""
    for path in directory.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (directory / LOCK).unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()


def _remove_partial(directory: Path) -> None:
    """Remove what killed processes have left, and empty directories."""
    for stage in [path for path in directory.iterdir() if path.is_dir()]:
        for path in stage.glob(f"*{PARTIAL}"):
            path.unlink()
        with contextlib.suppress(OSError):
            stage.rmdir()


@contextlib.contextmanager
def _lock(directory: Path, shared: bool) -> Iterator[None]:
    """Held until the end of the block, or of the process, however it ends."""
    descriptor = _open_lock(directory, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_lock(directory: Path, kind: int) -> int:
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        # Opened for writing: over NFS an exclusive lock needs that.
        try:
            descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if _is_there(descriptor, directory / LOCK):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise DataError(f"{directory}: another process prepares this corpus") from None
        except OSError as error:
            os.close(descriptor)
            raise DataError(f"{directory}: its file system has no locks: {error.strerror}") from error
        # The process that had it has removed the workplace meanwhile.
        os.close(descriptor)


def _is_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def commit(staged: Path, final: Path, suffixes: Sequence[str], wanted: Collection[str]) -> None:
    """Give the staged files their final names, in order; one of ``suffixes`` that is not ``wanted`` has no file then.

    May be called again where it was killed.
    """
    pairs = [(Path(f"{staged}{suffix}"), Path(f"{final}{suffix}"), suffix) for suffix in suffixes]
    with _uninterrupted():
        for source, target, suffix in reversed(pairs):
            # A wanted file that is not staged any more has its final name.
            if source.exists() or suffix not in wanted:
                target.unlink(missing_ok=True)
        for source, target, _ in pairs:
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
