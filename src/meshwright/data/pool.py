"""Apply a function to tasks ahead of their use, in worker processes or one thread, results in task order."""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from meshwright.data.errors import DataWorkerError

Task = TypeVar("Task")
Result = TypeVar("Result")

END_SECONDS = 5.0

Job = tuple[Future[Any], Callable[[Any], Any], Any]


class WorkerProcess:
    """One data worker and the pipes to it (see ``meshwright.data.worker``)."""

    def __init__(self, number: int, function_body: bytes) -> None:
        search_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # A process group of its own: Ctrl-C reaches the parent, which ends its workers itself.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "meshwright.data.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": search_path, "TOKENIZERS_PARALLELISM": "false"},
            process_group=0,
        )
        self.name = f"data worker {number} (pid {self.process.pid})"
        self._function_body: bytes | None = function_body

    def ask(self, task: Any) -> Any:
        """Send one task and wait for its reply: ("result", value) or ("error", pickled error, traceback).

        Raises:
            DataWorkerError: the process ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            if self._function_body is not None:
                pickle.dump(self._function_body, self.process.stdin)
                self._function_body = None
            pickle.dump(task, self.process.stdin, protocol=5)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise DataWorkerError(f"{self.name} ended {self._how_it_ended()}") from error

    def _how_it_ended(self) -> str:
        try:
            code = self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its replies but still runs"
        if code >= 0:
            return f"with exit code {code}"
        hint = "; the kernel kills a process when memory runs out" if code == -signal.SIGKILL else ""
        return f"by signal {signal.Signals(-code).name}{hint}"

    def kill(self) -> None:
        """End the process, whatever it is doing; a thread inside ``ask`` then gets its error."""
        self.process.kill()
        self.process.wait()

    def close_pipes(self) -> None:
        """Free the pipes, once no thread uses them."""
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


class OrderedMap(Generic[Task, Result]):
    """Iterator over ``function(task)`` in task order, computed up to ``ahead`` tasks before they are asked for.

    With ``workers`` 0 a background thread computes them; else that many processes, and ``function`` must
    pickle. ``finish`` runs in this process on each result. ``close`` (or leaving the ``with`` block, or being
    garbage collected) ends the workers.
    """

    def __init__(
        self,
        function: Callable[[Task], Any],
        tasks: Iterable[Task],
        *,
        workers: int,
        ahead: int,
        name: Callable[[Task], str],
        finish: Callable[[Any], Result],
    ) -> None:
        self._function, self._name, self._finish = function, name, finish
        self._tasks: Iterator[Task] = iter(tasks)
        self._ahead = max(1, ahead, workers)
        self._pending: deque[Future[Result]] = deque()
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        self._workers: list[WorkerProcess] = []
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # Daemons: a read that hangs must not keep a failed run from ending.
        self._threads = [
            threading.Thread(target=_serve, args=(self._jobs,), name=f"meshwright-data-{number}", daemon=True)
            for number in range(max(1, workers))
        ]
        self._end = weakref.finalize(self, _end, self._jobs, self._threads, self._workers)
        if workers:
            body = pickle.dumps(function, protocol=5)
            for number in range(workers):
                self._workers.append(WorkerProcess(number, body))
                self._idle.put(self._workers[-1])
        for thread in self._threads:
            thread.start()
        self._top_up()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result:
        """The next result.

        Raises:
            DataWorkerError: computing it failed (the cause is chained), or its worker ended.
        """
        self._top_up()
        if not self._pending:
            raise StopIteration
        try:
            result = self._pending.popleft().result()
        except BaseException:
            # Going on would leave a gap in the order.
            self.close()
            raise
        self._top_up()
        return result

    def close(self) -> None:
        """End workers and threads; may be called twice."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._tasks = iter(())
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _top_up(self) -> None:
        while len(self._pending) < self._ahead:
            try:
                task = next(self._tasks)
            except StopIteration:
                return
            except BaseException:
                self.close()
                raise
            compute = self._in_process if self._workers else self._in_thread
            future: Future[Result] = Future()
            self._pending.append(future)
            self._jobs.put((future, compute, task))

    def _in_thread(self, task: Task) -> Result:
        try:
            return self._finish(self._function(task))
        except Exception as error:
            raise DataWorkerError(_failure("data thread", self._name(task), error)) from error

    def _in_process(self, task: Task) -> Result:
        worker = self._idle.get()
        try:
            kind, *answer = worker.ask(task)
        except DataWorkerError as error:
            raise DataWorkerError(f"{error} at {self._name(task)}") from error.__cause__
        finally:
            self._idle.put(worker)
        if kind == "error":
            cause = pickle.loads(answer[0])
            cause.add_note(f"In {worker.name}:\n{answer[1]}")
            raise DataWorkerError(_failure(worker.name, self._name(task), cause)) from cause
        return self._finish(answer[0])


def _failure(who: str, what: str, error: BaseException) -> str:
    return f"{who} failed at {what}: {type(error).__name__}: {error}"


def _serve(jobs: "queue.SimpleQueue[Job | None]") -> None:
    while (job := jobs.get()) is not None:
        future, compute, task = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(compute(task))
            except BaseException as error:
                future.set_exception(error)
        # An idle thread must not keep the map alive that it works for.
        del job, future, compute, task


def _end(jobs: "queue.SimpleQueue[Job | None]", threads: list[threading.Thread], workers: list[WorkerProcess]) -> None:
    for _ in threads:
        jobs.put(None)
    for worker in workers:
        worker.kill()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(timeout=END_SECONDS)
    for worker in workers:
        worker.close_pipes()
