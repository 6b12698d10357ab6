"""A data worker as its parent sees it: asked, ended, and looked into where it hangs."""

import contextlib
import fcntl
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataWorkerError

END_SECONDS = 5.0
STACK_SECONDS = 2.0
PIPE_BYTES = 1 << 20


class WorkerProcess:
    """One data worker and the pipes to it (see ``meshwright.data.worker``)."""

    def __init__(self, number: int, function_body: bytes) -> None:
        search_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close_pipes)
        # A process group of its own: Ctrl-C reaches the parent, which ends its workers itself.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "meshwright.data.worker", str(self._stacks.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._stacks.fileno()],
            env={**os.environ, "PYTHONPATH": search_path, "TOKENIZERS_PARALLELISM": "false"},
            process_group=0,
        )
        assert self.process.stdout is not None
        # Less often from one process to the other and back. The kernel limits what a user may have in all.
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
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

    def stack(self) -> str:
        """Where its threads are, as Python tells, or why it does not."""
        # SIGURG is ignored by a process that has not yet registered to answer it.
        self.process.send_signal(signal.SIGURG)
        deadline, text = time.monotonic() + STACK_SECONDS, b""
        while time.monotonic() < deadline:
            before, text = text, os.pread(self._stacks.fileno(), 1 << 20, 0)
            if text and text == before:
                return text.decode(errors="replace").rstrip()
            time.sleep(0.05)
        return f"it does not tell where it is; state of the process: {self._state()}"

    def _state(self) -> str:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
            if found := re.search(r"^State:\s*(.*)$", status, re.MULTILINE):
                return found[1]
        return "unknown"

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
        """End the process; a thread inside ``ask`` then gets its error. Waits for nothing."""
        self.process.kill()

    def wait_until(self, deadline: float) -> None:
        """Wait for the end of a killed process, until ``time.monotonic`` says ``deadline``: some cannot be ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))

    def close_pipes(self) -> None:
        """Free the pipes, once no thread uses them."""
        self._stacks.close()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
