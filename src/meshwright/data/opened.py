"""Files that every process of a run opens by name for itself: that they can be read, and are the same each time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from meshwright.data.errors import DataError

FileState = tuple[Path, int, int]


@contextmanager
def told_if_unreadable() -> Iterator[None]:
    """Raise what the system says about a file as DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def state_of(path: Path) -> FileState:
    """A file with its size in bytes and the time of its last change in ns. Raises OSError."""
    found = path.stat()
    return path, found.st_size, found.st_mtime_ns


def check_unchanged(first: Sequence[FileState], now: Sequence[FileState]) -> None:
    """Refuse files that are not those that were opened first.

    Raises:
        DataError: one has another size or was written since.
    """
    for before, after in zip(first, now, strict=True):
        if before != after:
            raise DataError(f"{after[0]}: has changed since the run opened it; start the run again")
