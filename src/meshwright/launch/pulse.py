"""Signs of life of the launchers in one store: each counts up, the one that serves the store watches the counts."""

import socket
import time
from dataclasses import dataclass, field
from typing import Any

_LAUNCHERS, _LEFT = "meshwright/launchers", "meshwright/left"


class Pulse:
    """The sign of life of this launcher."""

    def __init__(self) -> None:
        self._number: int | None = None

    def beat(self, store: Any) -> None:
        """Give one; call it more than once a second."""
        if self._number is None:
            self._number = store.add(_LAUNCHERS, 1)
            store.set(f"meshwright/host/{self._number}", socket.gethostname())
        store.add(f"meshwright/beat/{self._number}", 1)

    def leave(self, store: Any) -> None:
        """The last one: silence after it is not a death."""
        if self._number is not None:
            store.set(f"meshwright/left/{self._number}", "")
            store.add(_LEFT, 1)


@dataclass
class Pulses:
    """What the launcher that serves the store knows of all of them. Times are those of its own clock."""

    _counts: dict[int, int] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)

    def look(self, store: Any) -> None:
        """Read the counts."""
        for number in range(1, store.add(_LAUNCHERS, 0) + 1):
            count = store.add(f"meshwright/beat/{number}", 0)
            if store.check([f"meshwright/left/{number}"]):
                self._heard.pop(number, None)
            elif self._counts.get(number) != count:
                self._heard[number] = time.monotonic()
            self._counts[number] = count

    def alive(self, seconds: float) -> int:
        """Launchers that gave a sign within that time."""
        return len(self._heard) - len(self.silent(seconds))

    def silent(self, seconds: float) -> list[int]:
        """Launchers that have not left, gave none, and were not given up."""
        return [number for number, when in list(self._heard.items()) if time.monotonic() - when > seconds]

    def give_up(self, seconds: float) -> list[int]:
        """The launchers that were silent for that time; they count again when they give a sign."""
        silent = self.silent(seconds)
        for number in silent:
            self._heard.pop(number, None)
        return silent


def host(store: Any, number: int) -> str:
    """Name of the machine of a launcher."""
    key = f"meshwright/host/{number}"
    return str(store.get(key).decode()) if store.check([key]) else "an unknown node"


def others_have_left(store: Any) -> bool:
    """Whether only one launcher is left."""
    return bool(store.add(_LEFT, 0) >= store.add(_LAUNCHERS, 0) - 1)
