"""What the launcher starts on each rank: ``python -m meshwright.launch.entry MODULE ARGS...`` runs MODULE.

It gives the rank one log (stderr joins stdout, whole lines), ties its life to the launcher's, and records the
failure of a module that does not do so itself.
"""

import ctypes
import faulthandler
import os
import runpy
import signal
import sys
from types import TracebackType

from meshwright.launch.failure import record_failure, set_position
from meshwright.launch.signals import take_signals


def main(argv: list[str]) -> None:
    """Run ``argv[0]`` as a module with the rest as its arguments. Raises SystemExit with its exit status."""
    os.dup2(1, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    faulthandler.enable()
    take_signals(os.getppid())
    _die_with_launcher()
    # The launcher handles Ctrl-C; a rank just ends, also when it waits inside a collective.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    module, sys.argv = argv[0], argv
    set_position(phase="start")
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:
        raise
    except BaseException as exc:
        record_failure(exc.with_traceback(_own_frames(exc.__traceback__)))
        # No interpreter shutdown: tearing down a broken process group can wait for peers for minutes.
        sys.stdout.flush()
        os._exit(1)


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this file and runpy above the module's; as it is where only those are."""
    inner = frames
    while inner is not None:
        file = inner.tb_frame.f_code.co_filename
        if file != __file__ and "runpy" not in file:
            return inner
        inner = inner.tb_next
    return frames


def _die_with_launcher() -> None:
    """A launcher killed by SIGKILL leaves no ranks behind (prctl PR_SET_PDEATHSIG; Linux only)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    launcher = os.environ.get("MESHWRIGHT_LAUNCHER", "")
    if launcher.isdigit() and os.getppid() != int(launcher):
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
