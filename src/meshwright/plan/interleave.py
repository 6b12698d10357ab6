"""How the interleaved schedule groups micro-batches."""

from functools import lru_cache


@lru_cache(maxsize=4096)
def group_size(stages: int, micro_batches: int) -> int:
    """Micro-batches that go through one model chunk before the next chunk has its turn.

    As many as there are stages where that divides them; else the next larger number that leaves no rest smaller than
    the stages, which would deadlock (Megatron-LM ``pipeline_parallel/schedules.py``, ``get_schedule_table``).
    """
    for size in range(stages, micro_batches):
        rest = micro_batches % size
        if rest == 0 or rest >= stages:
            return size
    return max(1, micro_batches)
