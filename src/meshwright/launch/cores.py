"""Processor cores that this process may use: fewer than the machine has, where taskset or a container says so."""

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that the scheduler lets this process run on, or fewer where a control group has a quota; at least 1.

    Args:
        root: where the file system starts.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Cores that each control group around this process allows, in version 1 or 2 (man 7 cgroups)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers
        # In a container the path may be that of the host: then only the base is there.
        for folder in (group := base / path.lstrip("/"), *group.parents):
            yield from _quota(folder)
            if folder == base:
                break


def _quota(folder: Path) -> Iterator[float]:
    """The quota of one control group, if it has one."""
    words = _text(folder / "cpu.max").split() or [_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    quota, period = (word.strip() for word in words)
    if quota.isdigit() and period.isdigit():
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
