"""One log file per rank, and their lines on the console: whole, in order, each with its rank."""

import threading
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.1


class Follower:
    """Reads what is appended to some files, line by line. A line is given out once it is whole."""

    def __init__(self, prefix: bool) -> None:
        self._prefix = prefix
        self._paths: dict[int, Path] = {}
        self._offsets: dict[int, int] = {}
        self._rests: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def add(self, rank: int, path: Path) -> None:
        """Follow one more rank's log, from its beginning. The file may not exist yet."""
        with self._lock:
            self._paths[rank], self._offsets[rank], self._rests[rank] = path, 0, b""

    def read(self, *, last: bool = False) -> list[str]:
        """New whole lines of every rank; with ``last`` also what stands there without a line end."""
        with self._lock:
            return [line for rank in sorted(self._paths) for line in self._read(rank, last)]

    def _read(self, rank: int, last: bool) -> list[str]:
        try:
            with self._paths[rank].open("rb") as file:
                file.seek(self._offsets[rank])
                new = file.read()
        except OSError:
            return []
        self._offsets[rank] += len(new)
        *whole, rest = (self._rests[rank] + new).split(b"\n")
        if last and rest:
            whole, rest = [*whole, rest], b""
        self._rests[rank] = rest
        return [self._format(rank, line) for line in whole]

    def _format(self, rank: int, line: bytes) -> str:
        # A bar that a library draws with carriage returns counts as one line: its last state.
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        return f"[rank {rank}] {text}" if self._prefix else text


class Relay:
    """A thread that hands the followed lines to ``emit`` and calls ``tick`` after each look."""

    def __init__(self, follower: Follower, emit: Callable[[str], None], tick: Callable[[], None]) -> None:
        self._follower, self._emit, self._tick = follower, emit, tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hand out what is left and end the thread."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self._look(last=False)
        self._look(last=True)

    def _look(self, last: bool) -> None:
        for line in self._follower.read(last=last):
            self._emit(line)
        self._tick()
