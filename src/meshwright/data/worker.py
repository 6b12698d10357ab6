"""A data worker: a process that applies one function to tasks read from stdin, replies on stdout.

It is a fresh interpreter (``python -m meshwright.data.worker``), not a fork, so it is safe beside a live
process group with its threads, imports no torch, and needs no main guard in the program that starts it. It
ends when stdin closes, in the middle of a task too, so it never outlives its parent, not even one that was killed:
whoever goes on after that parent has its files to itself. What schedulers send to whole process groups to make training
save and stop is its parent's affair. SIGURG makes it write where its threads are to the file whose descriptor is its
argument, even while it hangs.
"""

import faulthandler
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from typing import Any


def main() -> None:
    """Read the function, then one task at a time: ``("result", value)`` or ``("error", error, text)``."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.register(signal.SIGURG, file=int(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "wb")
    # A stray print in a data set must not end up in the middle of a reply.
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    function = _load(requests)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, tasks), daemon=True).start()
    while True:
        replies.write(_answer(function, tasks.get()))
        replies.flush()


def _read(requests: Any, tasks: "queue.SimpleQueue[Any]") -> None:
    """Hand on tasks; end the process where there can be none any more."""
    code = 1
    try:
        while True:
            tasks.put(pickle.load(requests))
    except EOFError:
        code = 0
    except Exception:
        traceback.print_exc()
    os._exit(code)


def _load(requests: Any) -> Any:
    """The function, or, if it cannot be unpickled here, one that tells so at the first task."""
    body = pickle.load(requests)
    try:
        return pickle.loads(body)
    except Exception as error:
        failure = error

        def fail(task: Any) -> Any:
            raise failure

        return fail


def _answer(function: Any, task: Any) -> bytes:
    try:
        return pickle.dumps(("result", function(task)), protocol=5)
    except Exception as error:
        text = traceback.format_exc()
        try:
            body = pickle.dumps(error)
            pickle.loads(body)
        except Exception:
            body = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return pickle.dumps(("error", body, text))


if __name__ == "__main__":
    main()
