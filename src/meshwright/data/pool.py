"""Apply a function to tasks ahead of their use, in worker processes or one thread, results in task order."""

import pickle
import queue
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from meshwright.data.errors import DataWorkerError
from meshwright.data.worker_process import END_SECONDS, WorkerProcess

Task = TypeVar("Task")
Result = TypeVar("Result")

Job = tuple[Future[Any], Callable[[Any], Any], Any]


class OrderedMap(Generic[Task, Result]):
    """Iterator over ``function(task)`` in task order, computed up to ``ahead`` tasks before they are asked for.

    With ``workers`` 0 a background thread computes them; else that many processes, and ``function`` must
    pickle. ``finish`` runs in this process on each result. ``close`` (or leaving the ``with`` block, or being
    garbage collected) ends the workers. A result that lets one wait for more than ``limit`` seconds is a failure.
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
        limit: float | None = None,
    ) -> None:
        self._function, self._name, self._finish, self._limit = function, name, finish, limit
        self._tasks: Iterator[Task] = iter(tasks)
        self._ahead = max(1, ahead, workers)
        self._pending: deque[tuple[Future[Result], Task]] = deque()
        self._asked: dict[WorkerProcess, Task] = {}
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
            DataWorkerError: computing it failed (the cause is chained), its worker ended, or it took too long.
        """
        self._top_up()
        if not self._pending:
            raise StopIteration
        future, task = self._pending.popleft()
        try:
            result = self._wait(future, task)
        except BaseException:
            # Going on would leave a gap in the order.
            self.close()
            raise
        self._top_up()
        return result

    def completed(self) -> Iterator[Result]:
        """Results as they come, in any order, so that one that takes long keeps no worker waiting.

        Raises:
            DataWorkerError: as when asked for in order.
        """
        self._top_up()
        while self._pending:
            done, _ = wait([future for future, _ in self._pending], return_when=FIRST_COMPLETED)
            self._pending = deque(entry for entry in self._pending if entry[0] not in done)
            results = [future.result() for future in done]
            self._top_up()
            yield from results

    def close(self) -> None:
        """End workers and threads; may be called twice."""
        for future, _ in self._pending:
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
            self._pending.append((future, task))
            self._jobs.put((future, compute, task))

    def _wait(self, future: Future[Result], task: Task) -> Result:
        try:
            return future.result(self._limit)
        except TimeoutError:
            if future.done():
                return future.result()
        worker = next((worker for worker, asked in list(self._asked.items()) if asked == task), None)
        who, stack = ("data thread", _stack_of(self._threads[0])) if worker is None else (worker.name, worker.stack())
        limit = f"{self._limit:g} s, the limit of dataset.timeout_s"
        raise DataWorkerError(f"{who} hangs at {self._name(task)}: nothing came in {limit}\n{stack}")

    def _in_thread(self, task: Task) -> Result:
        try:
            return self._finish(self._function(task))
        except Exception as error:
            raise DataWorkerError(_failure("data thread", self._name(task), error)) from error

    def _in_process(self, task: Task) -> Result:
        worker = self._idle.get()
        self._asked[worker] = task
        try:
            kind, *answer = worker.ask(task)
        except DataWorkerError as error:
            raise DataWorkerError(f"{error} at {self._name(task)}") from error.__cause__
        finally:
            del self._asked[worker]
            self._idle.put(worker)
        if kind == "error":
            cause = pickle.loads(answer[0])
            cause.add_note(f"In {worker.name}:\n{answer[1]}")
            raise DataWorkerError(_failure(worker.name, self._name(task), cause)) from cause
        return self._finish(answer[0])


def _failure(who: str, what: str, error: BaseException) -> str:
    return f"{who} failed at {what}: {type(error).__name__}: {error}"


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "it has ended"


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
    deadline = time.monotonic() + END_SECONDS
    for _ in threads:
        jobs.put(None)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.wait_until(deadline)
    for thread in threads:
        # One that was never started, where a worker could not be, cannot be joined.
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
    # A worker that not even SIGKILL ends, in a read that never returns, keeps its thread and its pipes.
    if not any(thread.is_alive() for thread in threads):
        for worker in workers:
            worker.close_pipes()
