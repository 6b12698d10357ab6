"""Wall and CPU seconds of a step, with those of the processes that it waited for."""

import resource
import time
from collections.abc import Callable


def timed(step: Callable[[], object]) -> dict[str, float]:
    """Run ``step``; its wall and CPU seconds."""
    wall, cpu = time.perf_counter(), _cpu()
    step()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": _cpu() - cpu}


def _cpu() -> float:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
