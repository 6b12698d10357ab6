"""A data worker: a process that applies one function to tasks read from stdin, replies on stdout.

It is a fresh interpreter (``python -m meshwright.data.worker``), not a fork, so it is safe beside a live
process group with its threads, imports no torch, and needs no main guard in the program that starts it. It
ends when stdin closes, so it never outlives its parent, not even one that was killed; what schedulers send to whole
process groups to make training save and stop is its parent's affair. SIGURG makes it write where its threads are to the
file whose descriptor is its argument, even while it hangs.
"""

import faulthandler
import os
import pickle
import signal
import sys
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
    while True:
        try:
            task = pickle.load(requests)
        except EOFError:
            return
        replies.write(_answer(function, task))
        replies.flush()


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
