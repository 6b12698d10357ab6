"""Start the ranks of this node, show what they print, and say how they ended: the launcher's one entry point."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from meshwright.launch.console import Console
from meshwright.launch.endpoint import choose_endpoint
from meshwright.launch.environment import handled_signals, launcher_environment
from meshwright.launch.logs import Follower, Relay
from meshwright.launch.nodes import Nodes
from meshwright.launch.outcome import ExitReport, describe
from meshwright.launch.restart import NO_RECOVERY, Recovery, history
from meshwright.launch.stop import StopForwarder

WORKER_MODULE = "meshwright.cli.rank"


def launch(
    argv_for_worker: Sequence[str],
    *,
    nproc_per_node: int,
    nodes: Nodes,
    rdzv_endpoint: str | None = None,
    log_dir: Path,
    worker_module: str = WORKER_MODULE,
    metrics_file: Path | None = None,
    total_steps: int | None = None,
    last_checkpoint: Callable[[], Path | None] | None = None,
    recovery: Recovery = NO_RECOVERY,
) -> ExitReport:
    """Run ``python -m worker_module argv_for_worker`` on every rank of this node and wait for the end.

    Ranks of one node have neighbouring global ranks. The first failure ends all ranks of all nodes within a
    minute, and the last lines printed name it, unless ``recovery`` starts them again.

    Args:
        rdzv_endpoint: HOST:PORT where several nodes meet; on one node a free port is taken without it.
        log_dir: each start of the ranks makes a folder in it, with ``rank<N>.log`` for each rank.
        metrics_file: JSONL of rank 0, shown as a progress bar on a terminal.
        last_checkpoint: finds the last complete checkpoint; printed when the run fails or is stopped.
        recovery: how to go on after a failure.

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
        endpoint = choose_endpoint(rdzv_endpoint, nodes)
        # torch comes in here: after the environment is set, and after what can be refused without it.
        from meshwright.launch.attempts import Attempts, Job
        from meshwright.launch.neighbours import Neighbours

        job = Job(
            command=["-m", "meshwright.launch.entry", worker_module, *argv_for_worker],
            nproc_per_node=nproc_per_node,
            nodes=nodes,
            endpoint=endpoint,
            logs=log_dir,
            relayed=functools.partial(_relayed, console, prefix=nproc_per_node * nodes.most > 1),
            say=console.line,
        )
        with contextlib.ExitStack() as stack:
            neighbours = None
            if nodes.most > 1:
                neighbours = Neighbours(endpoint, lost_is_curable=nodes.elastic, end_ranks=stop.end)
                stack.callback(neighbours.close)
            attempts = Attempts(job, recovery, neighbours, stop)
            report = attempts.run()
            _add_tracebacks_to_logs(report)
            _conclude(report, history(attempts.causes, recovery.max_restarts), last_checkpoint, recovery.command)
        return report


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
    report: ExitReport, past: str, last_checkpoint: Callable[[], Path | None] | None, command: str | None
) -> None:
    """Print how it ended, on stderr when not well."""
    if not report.code:
        if past:
            print(past, flush=True)
        return
    lines = [past] if past else []
    if last_checkpoint is not None:
        saved = last_checkpoint()
        lines.append(f"last complete checkpoint: {saved or 'none yet'}")
        if report.refused and saved and command:
            lines.append(f"to go on: {command}")
    sys.stdout.flush()
    # The first cause stays the last thing on the screen; a stop has none.
    lines.insert(len(lines) if report.stopped_by is None else 0, describe(report))
    print("\n".join(lines), file=sys.stderr, flush=True)


def _add_tracebacks_to_logs(report: ExitReport) -> None:
    """Ranks put tracebacks into records, not on the console, where the last lines must be one cause's."""
    for end in (*([report.cause] if report.cause else []), *report.consequences):
        if end.failure:
            with contextlib.suppress(OSError), end.log.open("a") as log:
                log.write(f"{end.failure.traceback}{end.failure.where()}: {end.failure.error}\n")
