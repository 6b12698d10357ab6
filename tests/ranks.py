"""Run a function on real ranks: fresh processes in a gloo group, forked from a server that has torch loaded.

    from ranks import run_ranks

    def body(scale: float) -> float:          # a module-level function: ranks import it by name
        t = torch.ones(1) * scale
        dist.all_reduce(t)
        return t.item()

    def test_sum():
        assert run_ranks(body, 2, 3.0) == [6.0, 6.0]

Every rank has the default process group, one compute thread, RANK / LOCAL_RANK / WORLD_SIZE set, seed 0 and
NaN in all uninitialised memory. This side never imports torch, so that it stays cheap to import.
"""

import contextlib
import multiprocessing as mp
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import rank_worker
from meshwright.launch.environment import variables

LOG_TAIL = 4000
FAULT_DUMP_SECONDS = 3.0
LOST_A_PEER = re.compile("Connection (closed|reset|refused)|Broken pipe")
DEATH_SECONDS = 1.0
"""A dead rank is heard of within this time after its peers."""


class RanksFailed(RuntimeError):
    """A rank died without saying why, or raised something that cannot be pickled."""


class RanksTimedOut(TimeoutError):
    """Some ranks did not finish in time; the message names them and shows where they stood."""


class RemoteTraceback(Exception):
    """Carries a rank's traceback text as the cause of the error raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def run_ranks(fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 120, **kwargs: Any) -> list[Any]:
    """Results of ``fn(*args, **kwargs)`` on ranks 0 .. world_size - 1, in rank order.

    Args:
        fn: a module-level function; it, its arguments and its results are pickled.
        timeout: seconds until every rank is killed.

    Raises:
        the error of the rank that failed first, as it was raised there, with a note of its rank and output;
        RanksFailed when a rank died instead; RanksTimedOut.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ranks = _Ranks(_start(fn, world_size, args, kwargs, folder, timeout), folder)
        stack.callback(ranks.kill)
        results = ranks.collect(timeout)
        ranks.join()
        ranks.show_logs()
        return results


def _start(
    fn: Callable[..., Any], world_size: int, args: Any, kwargs: Any, folder: Path, timeout: float
) -> list[tuple[BaseProcess, Connection]]:
    # Plain pickle: torch's own reducers would put argument tensors into memory that the ranks share.
    call = pickle.dumps((fn, args, kwargs))
    context = fork_server()
    started = []
    for rank in range(world_size):
        ours, theirs = context.Pipe(duplex=False)
        job = rank_worker.Job(rank, world_size, call, str(folder), timeout)
        process = context.Process(target=rank_worker.main, args=(job, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    return started


def fork_server() -> Any:
    """The multiprocessing context of the fork server, which is started once per session, for all that tests fork.

    A process has only one: a test that started it without torch would have every rank import it later.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["rank_worker", "rank_preload", "pytest"])
    here = str(Path(__file__).parent)
    # It gets sys.path by environment: 3.11 drops it otherwise.
    with variables(PYTHONPATH=os.pathsep.join([here, *filter(None, sys.path)]), OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


class _Ranks:
    """The processes of one call, the pipes that their results come through, and their folder of logs."""

    def __init__(self, started: list[tuple[BaseProcess, Connection]], folder: Path) -> None:
        self.processes = [process for process, _ in started]
        self.pipes = [pipe for _, pipe in started]
        self.folder = folder

    def collect(self, timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        results: dict[int, Any] = {}
        while len(results) < len(self.pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(self.pipes) if rank not in results}
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._timed_out(sorted(waiting.values()), timeout)
            messages = {waiting[pipe]: self._receive(waiting[pipe], pipe) for pipe in ready}  # type: ignore[index]
            failures = [message for message in messages.values() if isinstance(message, rank_worker.Failure)]
            if failures:
                if any(LOST_A_PEER.search(failure.text) for failure in failures):
                    failures += self._deaths({pipe: rank for pipe, rank in waiting.items() if pipe not in ready})
                self._raise(min(failures, key=lambda failure: failure.time))
            results.update(messages)
        return [pickle.loads(results[rank]) for rank in range(len(self.pipes))]

    def _deaths(self, silent: dict[Any, int]) -> list[rank_worker.Failure]:
        """Ranks that died without a word: their peers may be heard of first, but failed because of them."""
        for pipe in wait(silent, timeout=DEATH_SECONDS):
            self.processes[silent[pipe]].join(DEATH_SECONDS)  # type: ignore[index]
        dead = [(rank, pipe) for pipe, rank in silent.items() if self.processes[rank].exitcode is not None]
        messages = [self._receive(rank, pipe) for rank, pipe in dead]
        return [message for message in messages if isinstance(message, rank_worker.Failure)]

    def _receive(self, rank: int, pipe: Any) -> bytes | rank_worker.Failure:
        try:
            return pickle.loads(pipe.recv_bytes())
        except EOFError:
            self.processes[rank].join(5)
            code = self.processes[rank].exitcode
            how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"exited with {code}"
            return rank_worker.Failure(rank, 0.0, f"rank {rank} {how} before it gave a result", None)

    def _raise(self, failure: rank_worker.Failure) -> None:
        error = pickle.loads(failure.error) if failure.error else RanksFailed(failure.text)
        error.add_note(f"raised on rank {failure.rank} of {len(self.pipes)}")
        if tail := self.log(failure.rank)[-LOG_TAIL:]:
            error.add_note(f"output of rank {failure.rank}:\n{tail}")
        raise error from (RemoteTraceback(failure.text) if failure.error else None)

    def _timed_out(self, ranks: list[int], timeout: float) -> RanksTimedOut:
        """Ask each missing rank for its stacks (SIGUSR1 is answered even inside C++) before all are killed."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[rank].pid or 0, signal.SIGUSR1)
        stacks = [self._stack(rank) for rank in ranks]
        names = ", ".join(map(str, ranks))
        head = f"rank {names} of {len(self.pipes)} did not finish in {timeout:g} s; they stood here:"
        return RanksTimedOut("\n".join([head, *stacks]))

    def _stack(self, rank: int) -> str:
        path = rank_worker.stack_path(self.folder, rank)
        deadline = time.monotonic() + FAULT_DUMP_SECONDS
        while time.monotonic() < deadline and not (path.exists() and path.stat().st_size):
            time.sleep(0.05)
        time.sleep(0.05)
        text = path.read_text(errors="replace") if path.exists() else ""
        return f"--- rank {rank}\n{text or '(no answer)'}\n{self.log(rank)[-LOG_TAIL:]}"

    def log(self, rank: int) -> str:
        path = rank_worker.log_path(self.folder, rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def show_logs(self) -> None:
        """Print what ranks printed, where pytest captures it."""
        for rank in range(len(self.pipes)):
            for line in self.log(rank).splitlines():
                print(f"[rank {rank}] {line}")

    def join(self) -> None:
        for process in self.processes:
            process.join(10)

    def kill(self) -> None:
        for process in self.processes:
            if process.exitcode is None:
                process.kill()
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.join(10)
            pipe.close()
