"""Where ranks meet: a free port on one node, or the HOST:PORT that the user names."""

import contextlib
import errno
import os
import socket
import threading
from dataclasses import dataclass

from meshwright.launch.nodes import LaunchError, Nodes

_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class Endpoint:
    """A host and a port; port 0 is one that the operating system picks."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def choose_endpoint(given: str | None, nodes: Nodes) -> Endpoint:
    """Where the ranks meet; on one node without a wish, a port that the operating system picks.

    MASTER_PORT counts as a wish. Raises LaunchError when several nodes have no endpoint, it does not parse, its
    host is unknown, or another program has the port.
    """
    port = os.environ.get("MASTER_PORT")
    if given is not None:
        setting, text = f"--rdzv-endpoint {given}", given
    elif nodes.most > 1:
        raise LaunchError(f"--nnodes {nodes} needs --rdzv-endpoint HOST:PORT, the same on every node")
    elif port:
        setting, text = f"MASTER_PORT={port}", f"127.0.0.1:{port}"
    else:
        return Endpoint("127.0.0.1", 0)
    endpoint = parse_endpoint(text, setting)
    _refuse_taken(endpoint, setting, nodes.most)
    return endpoint


def _refuse_taken(endpoint: Endpoint, setting: str, nnodes: int) -> None:
    if not is_local(endpoint.host) or port_is_free(endpoint.port):
        return
    if nnodes > 1 and _is_store(endpoint):
        return
    way_out = "or leave it out for a free one" if nnodes == 1 else "the same on every node"
    raise LaunchError(
        f"port {endpoint.port} on {endpoint.host} is in use by another program (set by {setting}): "
        f"choose another port, {way_out}"
    )


def parse_endpoint(text: str, setting: str) -> Endpoint:
    """``host:port`` or ``[ipv6]:port`` apart. Raises LaunchError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise LaunchError(f"{setting}: expected HOST:PORT with a port from 1 to 65535, as in node0:29400")
    return Endpoint(host, int(port))


def is_local(host: str) -> bool:
    """Whether a host name is one of this machine's addresses. Raises LaunchError when it is unknown."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except socket.gaierror as exc:
        raise LaunchError(f"the rendezvous host {host} cannot be resolved: {exc.strerror}") from exc
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
        except OSError:
            continue
    return False


def port_is_free(port: int) -> bool:
    """Whether a TCP store could listen on a port of this machine, on all its addresses as the store does."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as exc:
            if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True


def _is_store(endpoint: Endpoint) -> bool:
    """Whether the program on a port is a rendezvous store: the launcher of another node on this machine."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    answered = threading.Event()

    def greet() -> None:
        with contextlib.suppress(Exception):
            TCPStore(endpoint.host, endpoint.port, is_master=False, timeout=timedelta(seconds=_ANSWER_SECONDS))
            answered.set()

    # In a thread: TCPStore waits without limit for a greeting from a server that speaks something else.
    threading.Thread(target=greet, daemon=True).start()
    return answered.wait(_ANSWER_SECONDS)
