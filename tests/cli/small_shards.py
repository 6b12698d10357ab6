"""``meshwright data prepare`` with small shards, in processes that are cheap to start."""

import contextlib
import multiprocessing
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranks import fork_server

SHARD_BYTES = 2000

Process = multiprocessing.context.ForkServerProcess


def start(function: Callable[..., None], *arguments: Any, **options: Any) -> Process:
    """Call a function of a test module in another process."""
    process: Process = fork_server().Process(target=function, args=arguments, kwargs=options)
    process.start()
    return process


def start_command(words: list[Any], log: Path, *, most_bytes: int = 0) -> Process:
    """``meshwright WORDS``, printing into LOG.out and LOG.err; no file may grow beyond ``most_bytes``, where given."""
    return start(_command, [str(word) for word in words], log, most_bytes)


def run_command(words: list[Any], log: Path, *, most_bytes: int = 0) -> subprocess.CompletedProcess[str]:
    """``start_command`` to its end."""
    process = start_command(words, log, most_bytes=most_bytes)
    process.join(60)
    return finished_command(process, log)


def finished_command(process: Process, log: Path) -> subprocess.CompletedProcess[str]:
    """What a command that has ended printed."""
    printed = [Path(f"{log}.{name}").read_text() for name in ("out", "err")]
    assert process.exitcode is not None
    return subprocess.CompletedProcess([], process.exitcode, *printed)


def _command(words: list[str], log: Path, most_bytes: int) -> None:
    from meshwright.cli import main
    from meshwright.data.preparation import shards

    shards.SHARD_BYTES = shards.LARGE_SHARD_BYTES = SHARD_BYTES
    with open(f"{log}.out", "w") as out, open(f"{log}.err", "w") as err:
        if most_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    os._exit(code)
