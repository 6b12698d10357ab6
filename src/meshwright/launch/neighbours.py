"""Launchers of several nodes tell each other of failures, through the store that they meet at.

Without it a node whose ranks wait inside a collective would notice a dead neighbour only at the collective's
timeout, and a node that lost a peer could not say why.
"""

import contextlib
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

from meshwright.launch.endpoint import Endpoint, is_local, port_is_free

POLL_SECONDS = 1.0
LOST_AFTER = 3
LINGER_SECONDS = 5.0
JOIN_SECONDS = 600
_CAUSE = "meshwright/first_cause"
_LOST = "meshwright/lost_a_peer"


class Neighbours:
    """The store at HOST:PORT, served from here on the node that has that address, and a thread that watches it.

    On news of a failure it ends this launcher by SIGTERM.

    Attributes:
        news: the failure that another node told of, or None.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.news: str | None = None
        self._host, self._port = endpoint.host, endpoint.port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="neighbours", daemon=True)
        # Held here: the agent drops its store as soon as its own ranks have ended.
        self._server = self._serve() if is_local(self._host) and port_is_free(self._port) else None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        """Stop watching: news after this does not end the launcher."""
        self._stop.set()

    def tell(self, text: str, *, lost_a_peer: bool) -> None:
        """Publish this node's failure, then stay until it can have been read (the store may live here)."""
        _within(LINGER_SECONDS, lambda: self._connect(LINGER_SECONDS).set(_LOST if lost_a_peer else _CAUSE, text))
        time.sleep(LINGER_SECONDS)

    def linger(self) -> None:
        """Keep the store until the other nodes' launchers have left it too."""
        if self._server is not None:
            time.sleep(POLL_SECONDS)

    def hear(self) -> str | None:
        """The first cause, if another node knows it within some seconds; for a node that only lost a peer."""
        deadline = time.monotonic() + LINGER_SECONDS
        while self.news is None and time.monotonic() < deadline:
            _within(POLL_SECONDS, lambda: self._look(self._connect(POLL_SECONDS), (_CAUSE,)))
            time.sleep(POLL_SECONDS / 2)
        return self.news

    def _serve(self) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        with contextlib.suppress(Exception):  # another launcher on this machine was faster
            return TCPStore(self._host, self._port, is_master=True, wait_for_workers=False, multi_tenant=True)

    def _connect(self, timeout: float) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore(self._host, self._port, is_master=False, timeout=timedelta(seconds=timeout))

    def _watch(self) -> None:
        try:
            store = self._connect(JOIN_SECONDS)
        except Exception:
            return  # the rendezvous itself reports a store that cannot be reached
        misses = 0
        while self.news is None and not self._stop.wait(POLL_SECONDS):
            try:
                self._look(store, (_CAUSE, _LOST))
                misses = 0
            except Exception:
                misses += 1
            if misses >= LOST_AFTER:
                self.news = f"lost the launcher at {self._host}:{self._port}, where the nodes meet"
        if self.news is not None and not self._stop.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def _look(self, store: Any, keys: tuple[str, ...]) -> None:
        for key in keys:
            if self.news is None and store.check([key]):
                self.news = store.get(key).decode()


def _within(seconds: float, call: Any) -> None:
    """Run a call in a thread and wait some seconds for it: a store that is broken may never answer."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            call()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(seconds)
