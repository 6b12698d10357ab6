"""Cycles of Python objects while a dry run lasts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Leave cycles of Python objects alone: when they are found depends on everything else in the process.

    Where they are looked for, then not among what existed before: with torch imported, that takes a tenth of a second,
    and while torch is being imported more than a second in all.
    """
    collecting, unfrozen = gc.isenabled(), gc.get_freeze_count() == 0
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if unfrozen:
            gc.unfreeze()
        if collecting:
            gc.enable()
