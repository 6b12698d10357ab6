"""torchrun's elastic agent, set up for one try, and what it reports turned into ours."""

import contextlib
import logging
import os
import signal
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from meshwright.launch.endpoint import Endpoint
from meshwright.launch.logs import Follower
from meshwright.launch.neighbours import JOIN_SECONDS, Neighbours, News
from meshwright.launch.outcome import ExitReport, first_cause
from meshwright.launch.rank_files import RankFiles
from meshwright.launch.stop import StopForwarder


@dataclass(frozen=True, kw_only=True)
class Node:
    """What this node contributes to one attempt.

    Attributes:
        nproc_per_node: its ranks.
        nnodes: how many such nodes meet.
        endpoint: where.
        folder: of its files.
        attempt: number of starts before this one.
    """

    nproc_per_node: int
    nnodes: int
    endpoint: Endpoint
    folder: Path
    attempt: int = 0


def run_agent(
    command: list[str], node: Node, follower: Follower, neighbours: Neighbours | None, stop: StopForwarder
) -> ExitReport:
    """Run ``python command`` on the ranks of this node until all have ended, and say how."""
    _silence_elastic()
    files = RankFiles(node.folder, follower, node.endpoint, node.attempt)
    folder = node.folder
    watching = neighbours.watching(node.attempt) if neighbours else contextlib.nullcontext()
    try:
        with contextlib.closing(files), stop.running(), watching:
            try:
                elastic_launch(_config(node, files, alone=neighbours is None), sys.executable)(*command)
            except ChildFailedError as exc:
                cause, others = first_cause([files.end(rank, failure) for rank, failure in exc.failures.items()])
                if stop.asked is not None and cause.was_ended:
                    return _stopped(folder, stop.asked)
                return ExitReport(code=1, log_dir=folder, cause=cause, consequences=others)
    except RendezvousError as exc:
        news = neighbours.hear(node.attempt) if neighbours else None
        text = f"the nodes could not meet, or lost touch, at {node.endpoint}: {exc}"
        return ExitReport(code=1, log_dir=folder, elsewhere=news or News(text=text))
    except (SignalException, KeyboardInterrupt) as exc:
        if neighbours and neighbours.news is not None:
            return ExitReport(code=1, log_dir=folder, elsewhere=neighbours.news)
        return _stopped(folder, signal.Signals(getattr(exc, "sigval", signal.SIGINT)))
    return ExitReport(code=0, log_dir=folder)


def _stopped(folder: Path, by: signal.Signals) -> ExitReport:
    return ExitReport(code=128 + by, log_dir=folder, stopped_by=by)


def _config(node: Node, files: RankFiles, *, alone: bool) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=node.nnodes,
        max_nodes=node.nnodes,
        nproc_per_node=node.nproc_per_node,
        run_id=uuid.uuid4().hex if alone else f"meshwright-{node.attempt}",
        rdzv_backend="c10d",
        rdzv_endpoint=str(node.endpoint),
        # Between nodes the store is held by `Neighbours`, so that it outlives this agent.
        rdzv_configs={} if alone else {"is_host": "false", "read_timeout": JOIN_SECONDS},
        # One try: what a failure is, and whether it is worth another, is decided in `attempts`.
        max_restarts=0,
        monitor_interval=0.1,
        # SIGTERM is ours: ranks are asked to save before they end.
        signals_to_handle="SIGINT,SIGHUP,SIGQUIT",
        # A container's own name often does not resolve.
        local_addr="127.0.0.1" if alone or node.endpoint.host.startswith("127.") else None,
        logs_specs=files,
    )


def _silence_elastic() -> None:
    """Its warnings (closing process ..., exit codes) say in another voice what our report says."""
    if "LOGLEVEL" in os.environ:
        return
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
