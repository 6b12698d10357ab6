"""Shared by all tests: one compute thread per process, set before anything imports torch; Ctrl-C works."""

import os
import signal

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Started in the background of a shell, this process ignores SIGINT, and so would every command that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
