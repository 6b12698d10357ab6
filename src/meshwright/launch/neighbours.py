"""Launchers of several nodes tell each other of failures, through the store that they meet at.

Without it a node whose ranks wait inside a collective would notice a dead neighbour only at the collective's
timeout, and a node that lost a peer could not say why.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from meshwright.launch.endpoint import Endpoint, is_local, port_is_free
from meshwright.launch.pulse import Pulse, Pulses, host, others_have_left

POLL_SECONDS = 0.5
LOST_AFTER = 6
SILENT_SECONDS = 30.0
LINGER_SECONDS = 5.0
JOIN_SECONDS = 600
OVER = "meshwright/over"
_END = "meshwright/end"


@dataclass(frozen=True, kw_only=True)
class News:
    """A failure on one node, for all of them.

    Attributes:
        text: the first cause, as that node's last lines tell it.
        curable: that node starts its ranks again, and so can the others.
        lost_a_peer: that node only knows that it lost a rank; another one may know why.
    """

    text: str
    curable: bool = False
    lost_a_peer: bool = False


class Neighbours:
    """The store at HOST:PORT, served from here on the node that has that address, and a thread that watches it.

    Args:
        endpoint: where the store is.
        lost_is_curable: the nodes that are left can go on without one that was lost.
        end_ranks: called, in another thread, on news of a failure while ranks run.

    Attributes:
        news: the failure of this attempt that another node told of, or None.
        serves: the store is here.
        pulses: of all launchers, where the store is.
        look_around: called with the store about twice a second while ranks run, where the store is.
    """

    def __init__(self, endpoint: Endpoint, *, lost_is_curable: bool, end_ranks: Callable[[], None]) -> None:
        self.news: News | None = None
        self.pulses = Pulses()
        self.look_around: Callable[[Any], None] | None = None
        self._endpoint = endpoint
        self._lost_is_curable, self._end_ranks = lost_is_curable, end_ranks
        self._attempt: int | None = None
        self._pulse = Pulse()
        self._stop = threading.Event()
        # Held here: the agent drops its store as soon as its own ranks have ended.
        self._server = self._serve() if is_local(endpoint.host) and port_is_free(endpoint.port) else None
        self.serves = self._server is not None
        threading.Thread(target=self._watch, name="neighbours", daemon=True).start()

    def close(self) -> None:
        """Leave; the store stays until the other launchers have left it too, or had time to."""
        self._stop.set()
        _within(LINGER_SECONDS, self._leave)

    @contextlib.contextmanager
    def watching(self, attempt: int) -> Iterator[None]:
        """While the ranks of one attempt run: news of its failure ends them."""
        self.news, self._attempt = None, attempt
        try:
            yield
        finally:
            self._attempt = None

    def tell(self, news: News, attempt: int) -> None:
        """Publish this node's failure."""
        key = _lost(attempt) if news.lost_a_peer else _cause(attempt) if news.curable else _END
        _within(LINGER_SECONDS, lambda: self.connect(LINGER_SECONDS).set(key, json.dumps(asdict(news))))

    def hear(self, attempt: int) -> News | None:
        """The first cause, if another node knows it within some seconds; for a node that only lost a peer."""
        deadline = time.monotonic() + LINGER_SECONDS
        while self.news is None and time.monotonic() < deadline:
            _within(POLL_SECONDS, lambda: self._look(self.connect(POLL_SECONDS), (_END, _cause(attempt))))
            time.sleep(POLL_SECONDS / 2)
        return self.news

    def the_end(self, store: Any) -> News | None:
        """The failure of a node that does not start again, if there is one."""
        self.news = None
        self._look(store, (_END,))
        return self.news

    def connect(self, timeout: float = JOIN_SECONDS) -> Any:
        """A client of the store. Raises what torch raises when there is none within ``timeout`` seconds."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        host, port = self._endpoint.host, self._endpoint.port
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout))

    def _serve(self) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        host, port = self._endpoint.host, self._endpoint.port
        with contextlib.suppress(Exception):  # another launcher on this machine was faster
            return TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True)

    def _leave(self) -> None:
        store = self.connect(POLL_SECONDS)
        if self.serves:
            store.set(OVER, "")
        while self.serves and not others_have_left(store):
            time.sleep(POLL_SECONDS / 5)
        self._pulse.leave(store)

    def _watch(self) -> None:
        try:
            store = self.connect()
        except Exception:
            return  # the rendezvous itself reports a store that cannot be reached
        misses = 0
        while not self._stop.wait(POLL_SECONDS):
            attempt = self._attempt
            try:
                self._beat(store, attempt)
                if attempt is not None:
                    self._look(store, (_END, _cause(attempt), _lost(attempt)))
                    if self.serves and self.look_around is not None:
                        self.look_around(store)
                misses = 0
            except Exception:
                misses += 1
            if misses >= LOST_AFTER:
                self.news = News(text=f"lost the launcher at {self._endpoint}, where the nodes meet")
            if self.news is not None and attempt is not None and attempt == self._attempt:
                self._end_ranks()
                # Once for each attempt.
                self._attempt = None

    def _beat(self, store: Any, attempt: int | None) -> None:
        self._pulse.beat(store)
        if self.serves:
            self.pulses.look(store)
        if not self.serves or attempt is None:
            return
        for number in self.pulses.give_up(SILENT_SECONDS):
            text = f"no sign of life of the launcher on {host(store, number)} for {SILENT_SECONDS:.0f} s"
            self.tell(News(text=text, curable=self._lost_is_curable), attempt)

    def _look(self, store: Any, keys: tuple[str, ...]) -> None:
        for key in keys:
            if self.news is None and store.check([key]):
                self.news = News(**json.loads(store.get(key)))


def _cause(attempt: int) -> str:
    return f"meshwright/{attempt}/first_cause"


def _lost(attempt: int) -> str:
    return f"meshwright/{attempt}/lost_a_peer"


def _within(seconds: float, call: Any) -> None:
    """Run a call in a thread and wait some seconds for it: a store that is broken may never answer."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            call()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(seconds)
