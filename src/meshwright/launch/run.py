"""Start the ranks of this node, show what they print, and say how they ended: the launcher's one entry point."""

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.launch.console import Console
from meshwright.launch.endpoint import choose_endpoint
from meshwright.launch.environment import handled_signals, launcher_environment, threads_per_rank
from meshwright.launch.logs import Follower, Relay
from meshwright.launch.outcome import ExitReport, describe
from meshwright.launch.stop import StopForwarder

if TYPE_CHECKING:
    from meshwright.launch.neighbours import Neighbours

WORKER_MODULE = "meshwright.cli.rank"


def launch(
    argv_for_worker: Sequence[str],
    *,
    nproc_per_node: int,
    nnodes: int = 1,
    rdzv_endpoint: str | None = None,
    log_dir: Path,
    worker_module: str = WORKER_MODULE,
    metrics_file: Path | None = None,
    total_steps: int | None = None,
    last_checkpoint: Callable[[], Path | None] | None = None,
) -> ExitReport:
    """Run ``python -m worker_module argv_for_worker`` on every rank of this node and wait for the end.

    Ranks of one node have neighbouring global ranks. The first failure ends all ranks of all nodes within a
    minute, and the last lines printed name it.

    Args:
        rdzv_endpoint: HOST:PORT where several nodes meet; on one node a free port is taken without it.
        log_dir: each launch makes a folder in it, with ``rank<N>.log`` for each rank.
        metrics_file: JSONL of rank 0, shown as a progress bar on a terminal.
        last_checkpoint: finds the last complete checkpoint; printed when the run fails or is stopped.

    Raises:
        LaunchError: the endpoint is missing, malformed or taken; nothing was started.
    """
    console = Console(metrics_file, total_steps)
    stop = StopForwarder(console.line)
    with (
        launcher_environment(nproc_per_node, console.draws_bar),
        handled_signals(stop),
        contextlib.closing(stop),
    ):
        endpoint = choose_endpoint(rdzv_endpoint, nnodes)
        # torch comes in here: after the environment is set, and after what can be refused without it.
        from meshwright.launch.agent import Node, run_agent
        from meshwright.launch.neighbours import Neighbours

        node = Node(nproc_per_node=nproc_per_node, nnodes=nnodes, endpoint=endpoint, folder=_new_folder(log_dir))
        neighbours = Neighbours(endpoint) if nnodes > 1 else None
        threads = threads_per_rank(nproc_per_node)
        console.line(f"starting {nproc_per_node} ranks here, {threads} threads each; logs: {node.folder}")
        command = ["-m", "meshwright.launch.entry", worker_module, *argv_for_worker]
        with _relayed(console, prefix=nproc_per_node * nnodes > 1) as follower:
            report = run_agent(command, node, follower, neighbours, stop)
        _add_tracebacks_to_logs(report)
        return _conclude(report, neighbours, last_checkpoint)


def _new_folder(log_dir: Path) -> Path:
    folder = log_dir / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _relayed(console: Console, prefix: bool) -> Iterator[Follower]:
    follower = Follower(prefix)
    relay = Relay(follower, console.line, console.tick)
    console.start()
    relay.start()
    try:
        yield follower
    finally:
        relay.stop()
        console.stop()


def _conclude(
    report: ExitReport, neighbours: "Neighbours | None", last_checkpoint: Callable[[], Path | None] | None
) -> ExitReport:
    """Print how it ended; between nodes, first ask for the cause where only a peer was lost, then tell ours."""
    if neighbours and report.lost_a_peer and (news := neighbours.hear()):
        report = replace(report, elsewhere=news)
    if report.code:
        sys.stdout.flush()
        print(_text(report, last_checkpoint), file=sys.stderr, flush=True)
    if neighbours and report.elsewhere is None:
        if report.code:
            neighbours.tell(f"on node {socket.gethostname()}: {_text(report)}", lost_a_peer=report.lost_a_peer)
        else:
            neighbours.linger()
    return report


def _text(report: ExitReport, last_checkpoint: Callable[[], Path | None] | None = None) -> str:
    lines = []
    if report.stopped_by is not None:
        how = "Ctrl-C" if report.stopped_by == signal.SIGINT else report.stopped_by.name
        lines.append(f"stopped by {how}; all ranks have ended")
    if last_checkpoint is not None:
        lines.append(f"last complete checkpoint: {last_checkpoint() or 'none yet'}")
    # The first cause stays the last thing on the screen.
    return "\n".join([*lines, *filter(None, [describe(report)])])


def _add_tracebacks_to_logs(report: ExitReport) -> None:
    """Ranks put tracebacks into records, not on the console, where the last lines must be one cause's."""
    for end in (*([report.cause] if report.cause else []), *report.consequences):
        if end.failure:
            with contextlib.suppress(OSError), end.log.open("a") as log:
                log.write(f"{end.failure.traceback}{end.failure.where()}: {end.failure.error}\n")
