"""The hidden directory beside a corpus in which it is made, and the step that gives all files their names."""

import contextlib
import fcntl
import glob
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from meshwright.data.errors import DataError
from meshwright.data.preparation.shards import PARTIAL
from meshwright.data.record import TOKENIZER_SUFFIXES

LOCK = "lock"
TOKEN_BYTES = 4


def workplace_path(output: Path) -> Path:
    """Where the work for ``output`` is done."""
    return output.parent / f".{output.name}.partial"


@contextlib.contextmanager
def workplace(output: Path, *, shared: bool = False) -> Iterator[Path]:
    """The directory beside the output that holds those of the stages, until ``commit`` takes it away.

    Where the work failed or was killed, what is finished stays, to go on from. A ``shared`` workplace has room for
    several processes, on several machines; none of them removes anything.

    Raises:
        DataError: another process works there, and one of the two wants it for itself.
    """
    directory = workplace_path(output)
    with _lock(directory, shared) as lock:
        if shared:
            yield directory
            return
        _remove_partial(directory)
        try:
            yield directory
        finally:
            if _is_there(lock, directory / LOCK):
                _remove_partial(directory)
                if all(path.name == LOCK for path in directory.iterdir()):
                    _take_away(directory)
            _sweep(directory)


def _take_away(directory: Path) -> None:
    """Give a workplace a name that no run looks up: in one step, so that none finds half of its results."""
    # No workplace has such a name: theirs end in .partial.
    os.replace(directory, f"{directory}-{secrets.token_hex(TOKEN_BYTES)}")


def _sweep(directory: Path) -> None:
    """Remove what has been taken away, by this process and by killed ones."""
    for path in directory.parent.glob(glob.escape(f"{directory.name}-") + "[0-9a-f]" * 2 * TOKEN_BYTES):
        # Another process may be at it, too.
        shutil.rmtree(path, ignore_errors=True)


def _remove_partial(directory: Path) -> None:
    """Remove what killed processes have left, and empty directories."""
    for stage in [path for path in directory.iterdir() if path.is_dir()]:
        for path in stage.glob(f"*{PARTIAL}"):
            path.unlink()
        with contextlib.suppress(OSError):
            stage.rmdir()


@contextlib.contextmanager
def _lock(directory: Path, shared: bool) -> Iterator[int]:
    """Its descriptor, held until the end of the block, or of the process, however it ends."""
    descriptor = _open_lock(directory, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield descriptor
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


def commit(staged: Path, final: Path, suffixes: Sequence[str], wanted: Mapping[str, int]) -> None:
    """Give the staged files their final names, in order, and take the workplace away.

    May be called again where it was killed.

    Args:
        staged, final: path prefixes of the files.
        suffixes: of all files that there may be. One that is not ``wanted`` has no file then.
        wanted: sizes in bytes by suffix.

    Raises:
        DataError: a wanted file is neither staged nor has its final name; nothing is done.
    """
    pairs = [(Path(f"{staged}{suffix}"), Path(f"{final}{suffix}"), suffix) for suffix in suffixes]
    for source, target, suffix in pairs:
        if suffix in wanted and wanted[suffix] not in (_size(source), _size(target)):
            raise DataError(
                f"{target}: was removed or changed after this corpus was finished; remove {workplace_path(final)} to "
                "prepare it anew"
            )
    with _uninterrupted():
        for source, target, suffix in reversed(pairs):
            # The tokenizer may be the one that this request reads: it is replaced in one step.
            if suffix not in wanted or (source.exists() and suffix not in TOKENIZER_SUFFIXES):
                target.unlink(missing_ok=True)
        for source, target, _ in pairs:
            if source.exists():
                os.replace(source, target)
        _take_away(workplace_path(final))


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


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
        raise KeyboardInterrupt("all files were written")
