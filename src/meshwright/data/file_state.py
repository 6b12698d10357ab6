"""What a file was when it was first looked at: whoever opens it later, in whichever process, must find the same."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from meshwright.data.errors import DataError


class FileState(NamedTuple):
    """What tells one file, and one content of it, from others; ``path`` is as it was given, ``file`` without links."""

    path: str
    file: str
    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """That of a file.

        Raises:
            DataError: it cannot be read.
        """
        with told_if_unreadable(path):
            stat = path.stat()
        return cls(str(path), str(path.resolve()), stat.st_size, stat.st_mtime_ns)

    def holds(self) -> bool:
        """Whether it still is that."""
        try:
            return FileState.of(Path(self.path)) == self
        except DataError:
            return False


def check_unchanged(states: Iterable[FileState]) -> None:
    """Refuse to have read what is not what was planned.

    Raises:
        DataError: a file is not what it was.
    """
    for state in states:
        if not state.holds():
            raise DataError(f"{state.path}: has changed since this command began; run it again")


@contextmanager
def told_if_unreadable(path: Path) -> Iterator[None]:
    """Raise what the system says about a file as DataError; ``path`` where it does not name the file itself."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path}: cannot be read: {error.strerror}") from error
