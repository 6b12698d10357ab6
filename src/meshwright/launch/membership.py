"""Which nodes an elastic run goes on with: those that join an attempt before it is closed. Later ones join the next.

torch's rendezvous could find a number between two as well, but restarts all ranks without a word when a node comes
back, and with the keys of the round before still in the store that the ranks meet in. Here the launcher that serves
the store decides, torch gets a fixed number, and ranks save before they make room for a node that has come.
"""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshwright.launch.neighbours import JOIN_SECONDS, OVER, Neighbours
from meshwright.launch.nodes import Nodes

LAST_CALL_SECONDS = 30.0
ALIVE_SECONDS = 3.0
_POLL_SECONDS = 0.2
_ATTEMPT = "meshwright/attempt"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the ranks.

    Attributes:
        number: 0 for the first.
        nodes: how many take part.
        restarts: how many attempts before this one failed.
        restart_from: the checkpoint to go on from, as the launcher that serves the store found it; None: as asked.
    """

    number: int
    nodes: int
    restarts: int
    restart_from: str | None


class GatherError(Exception):
    """The nodes of an attempt did not come together; the message says why."""


class Gathering:
    """Joins attempt after attempt.

    Args:
        wanted: how many nodes may take part.
        stopped: whether the user wants no more; ends all waiting.
    """

    def __init__(self, neighbours: Neighbours, wanted: Nodes, stopped: Callable[[], bool]) -> None:
        self._neighbours, self._wanted, self._stopped = neighbours, wanted, stopped
        self._store: Any = None

    def join(self, own: Attempt) -> Attempt:
        """Join the newest attempt and wait for its members. ``own`` is this node's view of it.

        Raises GatherError.
        """
        try:
            return self._join(own)
        except RuntimeError as error:
            raise GatherError(f"lost the launcher where the nodes meet: {error}") from error

    def _join(self, own: Attempt) -> Attempt:
        self._store = self._store or self._neighbours.connect()
        number = own.number
        while True:
            number = max(number, self._newest())
            place = self._store.add(_key(number, "joined"), 1)
            members = self._members(replace(own, number=number))
            if place <= members.nodes:
                return members
            self._store.set(_key(number, "late"), "")
            while self._newest() == number:
                self._pause()

    def make_room(self, store: Any, number: int) -> bool:
        """Whether a node has come too late for an attempt; then all nodes are told that another one follows.

        Only the launcher that serves the store calls it.
        """
        late = bool(store.check([_key(number, "late")]))
        if late:
            store.set(_key(number, "followed"), "")
        return late

    def followed(self, number: int) -> bool:
        """Whether an attempt that ended well is to be followed by one with more nodes."""
        with contextlib.suppress(RuntimeError):  # the store is gone: the run is over
            return bool(self._store.check([_key(number, "followed")]))
        return False

    def _newest(self) -> int:
        return int(self._store.get(_ATTEMPT)) if self._store.check([_ATTEMPT]) else 0

    def _members(self, own: Attempt) -> Attempt:
        key, opened = _key(own.number, "members"), time.monotonic()
        if self._neighbours.serves:
            self._store.set(_ATTEMPT, str(own.number))
        while not self._store.check([key]):
            joined = self._store.add(_key(own.number, "joined"), 0)
            waited = time.monotonic() - opened
            if self._neighbours.serves and self._complete(own.number, joined, waited):
                self._neighbours.pulses.give_up(ALIVE_SECONDS)
                members = replace(own, nodes=min(joined, self._wanted.most))
                self._store.set(key, json.dumps(asdict(members)))
            elif waited > JOIN_SECONDS:
                raise GatherError(f"{joined} of at least {self._wanted.fewest} nodes came within {JOIN_SECONDS} s")
            else:
                self._pause()
        return Attempt(**json.loads(self._store.get(key)))

    def _complete(self, number: int, joined: int, waited: float) -> bool:
        """Everybody is there, or, on a restart, everybody who lives, or nobody more came in time."""
        if joined < self._wanted.fewest:
            return False
        everybody = number > 0 and joined >= self._neighbours.pulses.alive(ALIVE_SECONDS)
        return joined >= self._wanted.most or everybody or waited > LAST_CALL_SECONDS

    def _pause(self) -> None:
        if self._stopped():
            raise GatherError("stopped while the nodes gathered")
        if news := self._neighbours.the_end(self._store):
            raise GatherError(news.text)
        if self._store.check([OVER]):
            raise GatherError("the run ended before this node could join it")
        time.sleep(_POLL_SECONDS)


def _key(number: int, name: str) -> str:
    return f"meshwright/{number}/{name}"
