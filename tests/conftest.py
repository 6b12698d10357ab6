"""Shared by all tests: one compute thread per process, set before anything imports torch."""

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
