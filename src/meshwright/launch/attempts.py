"""Start the ranks, again where that helps, until the run is done, stopped, or cannot go on."""

import contextlib
import itertools
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import SignalException

from meshwright.launch import position
from meshwright.launch.agent import Node, run_agent
from meshwright.launch.endpoint import Endpoint
from meshwright.launch.environment import threads_per_rank, variables
from meshwright.launch.logs import Follower
from meshwright.launch.membership import Attempt, GatherError, Gathering
from meshwright.launch.neighbours import Neighbours, News
from meshwright.launch.nodes import LaunchError, Nodes
from meshwright.launch.outcome import ExitReport, describe
from meshwright.launch.restart import RESTART_FROM, Recovery, cause_line, curable, restart_line
from meshwright.launch.stop import StopForwarder


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is the same for every attempt.

    Attributes:
        command: arguments of the interpreter on each rank.
        logs: each attempt makes a folder in it.
        relayed: shows what ranks print while it is entered.
        say: prints a line.
    """

    command: list[str]
    nproc_per_node: int
    nodes: Nodes
    endpoint: Endpoint
    logs: Path
    relayed: Callable[[], contextlib.AbstractContextManager[Follower]]
    say: Callable[[str], None]


class Attempts:
    """The attempts of one launch.

    Attributes:
        causes: for each restart, the failure before it in one line.
    """

    def __init__(self, job: Job, recovery: Recovery, neighbours: Neighbours | None, stop: StopForwarder) -> None:
        self.causes: list[str] = []
        self._job, self._recovery, self._neighbours, self._stop = job, recovery, neighbours, stop
        self._gathering: Gathering | None = None
        if neighbours and job.nodes.elastic:
            self._gathering = Gathering(neighbours, job.nodes, lambda: stop.asked is not None)
            neighbours.look_around = self._make_room
        self._attempt = Attempt(number=0, nodes=job.nodes.most, restarts=0, restart_from=None)
        self._folder = job.logs
        self._told, self._room_in = 0, -1

    def run(self) -> ExitReport:
        """Run attempts; returns how the last one ended."""
        while True:
            try:
                report = self._once()
                if report.refused is not None and self._stop.asked:
                    report = self._stopped(self._stop.asked)
            except (SignalException, KeyboardInterrupt):
                report = self._stopped(signal.SIGINT)
            if not self._goes_on(report):
                return report

    def _once(self) -> ExitReport:
        """Gather the nodes, start the ranks, wait for their end."""
        try:
            if self._gathering:
                self._attempt = self._gathering.join(self._attempt)
            layout = self._recovery.fit(self._attempt.nodes * self._job.nproc_per_node)
        except (GatherError, LaunchError) as error:
            return ExitReport(code=1, log_dir=self._folder, refused=str(error))
        if self._stop.asked:
            return self._stopped(self._stop.asked)
        self._announce(layout)
        report = self._run_ranks()
        if self._neighbours and report.lost_a_peer and (news := self._neighbours.hear(self._attempt.number)):
            report = replace(report, elsewhere=news)
        return report

    def _run_ranks(self) -> ExitReport:
        job, attempt = self._job, self._attempt
        self._folder = _new_folder(job.logs)
        threads = threads_per_rank(job.nproc_per_node)
        job.say(f"starting {job.nproc_per_node} ranks here, {threads} threads each; logs: {self._folder}")
        node = Node(
            nproc_per_node=job.nproc_per_node,
            nnodes=attempt.nodes,
            endpoint=job.endpoint,
            folder=self._folder,
            attempt=attempt.number,
        )
        known = {RESTART_FROM: attempt.restart_from} if attempt.restart_from else {}
        with variables(**known), job.relayed() as follower:
            return run_agent(job.command, node, follower, self._neighbours, self._stop)

    def _goes_on(self, report: ExitReport) -> bool:
        """Whether another attempt follows; tells the other nodes, and prepares it."""
        attempt = self._attempt
        if report.code == 0:
            asked = self._stop.asked is not None
            again = self._gathering is not None and not asked and self._gathering.followed(attempt.number)
        else:
            left = attempt.restarts < self._recovery.max_restarts
            again = left and self._stop.asked is None and curable(report)
            self._tell(report, curable=again)
            if again:
                self.causes.append(cause_line(report))
        if again:
            saved = self._recovery.saved()
            self._attempt = replace(
                attempt,
                number=attempt.number + 1,
                restarts=attempt.restarts + (report.code != 0),
                restart_from=str(saved) if saved else None,
            )
        return again

    def _tell(self, report: ExitReport, *, curable: bool) -> None:
        if self._neighbours is None or report.elsewhere is not None or report.refused is not None:
            return
        text = f"on node {socket.gethostname()}: {describe(report)}"
        news = News(text=text, curable=curable, lost_a_peer=report.lost_a_peer)
        self._neighbours.tell(news, self._attempt.number)

    def _announce(self, layout: str | None) -> None:
        """Say why there is another attempt, where it starts, and what its layout is."""
        say, attempt = self._job.say, self._attempt
        start = attempt.restart_from
        if len(self.causes) > self._told:
            say(self.causes[-1])
            say(restart_line(attempt.restarts, self._recovery.max_restarts, start))
        elif attempt.number:
            say(f"a node has come: going on with {attempt.nodes} nodes{f' from {start}' if start else ''}")
        self._told = len(self.causes)
        if layout is not None:
            say(layout)

    def _make_room(self, store: Any) -> None:
        """Ask the ranks to save and end when a node waits; in the neighbours' thread, where the store is."""
        attempt = self._attempt
        if attempt.nodes == self._job.nodes.most or self._room_in == attempt.number or not self._ranks_train():
            return
        assert self._gathering is not None
        if self._gathering.make_room(store, attempt.number):
            self._room_in = attempt.number
            self._job.say("a node has come: the ranks finish their step and save, to go on with it")
            self._stop.ask()

    def _ranks_train(self) -> bool:
        """Whether all ranks of this node have begun a step, and so listen to a wish to stop."""
        files = list(self._folder.glob("rank*.position"))
        return len(files) == self._job.nproc_per_node and all(position.read(file)[0] for file in files)

    def _stopped(self, by: signal.Signals) -> ExitReport:
        return ExitReport(code=128 + by, log_dir=self._folder, stopped_by=by)


def _new_folder(logs: Path) -> Path:
    began = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    # Nodes that share the folder may start in the same second.
    names = itertools.chain([began], (f"{began}-{number}" for number in itertools.count(2)))
    return next(logs / name for name in names if _make(logs / name))


def _make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True
