"""Batch arithmetic: two of the three batch numbers give the third, and three must agree."""

import math
from collections.abc import Iterable

from meshwright.spec.layout import Layout
from meshwright.spec.nearest import divisors, nearest, nearest_multiples
from meshwright.spec.training import Batch
from meshwright.spec.violation import Violation

MICRO_BATCH_SIZE = "train.micro_batch_size"
GLOBAL_BATCH_SIZE = "train.global_batch_size"
MICRO_BATCH_NUM = "parallel_config.micro_batch_num"
DATA_PARALLEL = "parallel_config.data_parallel"
EQUATION = "global_batch_size = micro_batch_size x data_parallel x micro_batch_num"


def solve_batch(
    micro_batch_size: int | None,
    micro_batch_num: int | None,
    global_batch_size: int | None,
    data_parallel: int,
    *,
    pipeline_stage: int = 1,
) -> Batch | list[Violation]:
    """Complete the batch from any two of its three numbers, or say why it cannot be.

    Args:
        micro_batch_size: sequences in one forward pass of one data rank.
        micro_batch_num: micro-batches per optimizer step on each data rank.
        global_batch_size: sequences per optimizer step over all data ranks.
        data_parallel: data ranks, already a number.
        pipeline_stage: only used so that no micro_batch_num under it is offered.
    """
    given = (
        (MICRO_BATCH_SIZE, micro_batch_size),
        (MICRO_BATCH_NUM, micro_batch_num),
        (GLOBAL_BATCH_SIZE, global_batch_size),
    )
    if faults := [_not_positive(key, value) for key, value in given if value is not None and value < 1]:
        return faults
    match micro_batch_size, micro_batch_num, global_batch_size:
        case int(size), int(num), None:
            return Batch(micro_batch_size=size, micro_batch_num=num, global_batch_size=size * data_parallel * num)
        case int(size), None, int(whole):
            return _derive_num(size, whole, data_parallel)
        case None, int(num), int(whole):
            return _derive_size(num, whole, data_parallel, pipeline_stage)
        case int(size), int(num), int(whole):
            return _check_all(size, num, whole, data_parallel)
    return [_too_few(given)]


def equation(batch: Batch, data_parallel: int, seq_length: int | None = None) -> str:
    """The batch equation with its numbers, and tokens per step where the sequence length is given."""
    text = (
        f"global_batch_size {batch.global_batch_size} = micro_batch_size {batch.micro_batch_size}"
        f" x data_parallel {data_parallel} x micro_batch_num {batch.micro_batch_num}"
    )
    if seq_length is None:
        return text
    return f"{text}; x seq_length {seq_length} = {batch.global_batch_size * seq_length} tokens per step"


def auto_data_parallel(world_size: int, layout: Layout) -> int | Violation:
    """``data_parallel: auto``: the devices that the other dimensions leave over.

    The ``data_parallel`` of the layout is not read. Returns a Violation when the other dimensions do not
    divide the devices.
    """
    others = layout.model_parallel * layout.pipeline_stage * layout.context_parallel
    if world_size % others == 0:
        return world_size // others
    return Violation(
        key_path=DATA_PARALLEL,
        message=(
            f"{world_size} devices are not a multiple of model_parallel {layout.model_parallel}"
            f" x pipeline_stage {layout.pipeline_stage} x context_parallel {layout.context_parallel}"
            f" = {others}; start on {' or '.join(nearest_multiples(world_size, others))} devices"
            f" or choose dimensions whose product divides {world_size}"
        ),
    )


def batch_change_notice(before: int, after: int, learning_rate_before: float, learning_rate_after: float) -> str | None:
    """What to tell a user whose global batch changed while the learning rate did not; None otherwise.

    Offers linear (arXiv:1706.02677) and square-root scaling as hints; nothing changes by itself.
    """
    if before == after or learning_rate_before != learning_rate_after:
        return None
    ratio = after / before
    linear, root = learning_rate_before * ratio, learning_rate_before * math.sqrt(ratio)
    return (
        f"global_batch_size went from {before} to {after} (x{ratio:g}) but learning_rate stayed"
        f" {learning_rate_before:g}; linear scaling would be {linear:g}, square-root scaling {root:.3g}"
    )


def _not_positive(key: str, value: int) -> Violation:
    return Violation(key_path=key, message=f"{value} is not a positive number", legal=("1 or more",))


def _too_few(given: Iterable[tuple[str, int | None]]) -> Violation:
    missing = [key for key, value in given if value is None]
    return Violation(
        key_path=missing[0],
        message=f"two of the three batch numbers must be given ({EQUATION}); missing: {', '.join(missing)}",
    )


def _derive_num(size: int, global_size: int, data_parallel: int) -> Batch | list[Violation]:
    per_micro_batch = size * data_parallel
    num, rest = divmod(global_size, per_micro_batch)
    if rest == 0:
        return Batch(micro_batch_size=size, micro_batch_num=num, global_batch_size=global_size)
    message = (
        f"{global_size} is not a multiple of micro_batch_size {size} x data_parallel {data_parallel}"
        f" = {per_micro_batch} ({EQUATION})"
    )
    legal = nearest_multiples(global_size, per_micro_batch)
    return [Violation(key_path=GLOBAL_BATCH_SIZE, message=message, legal=legal)]


def _derive_size(num: int, global_size: int, data_parallel: int, pipeline_stage: int) -> Batch | list[Violation]:
    size, rest = divmod(global_size, data_parallel * num)
    if rest == 0:
        return Batch(micro_batch_size=size, micro_batch_num=num, global_batch_size=global_size)
    nearest_global = nearest_multiples(global_size, data_parallel * num)
    if global_size % data_parallel:
        message = (
            f"{global_size} is not a multiple of data_parallel {data_parallel} x micro_batch_num {num}"
            f" = {data_parallel * num} ({EQUATION})"
        )
        return [Violation(key_path=GLOBAL_BATCH_SIZE, message=message, legal=nearest_global)]
    per_rank = global_size // data_parallel
    legal = [count for count in divisors(per_rank) if count >= pipeline_stage]
    message = (
        f"the {per_rank} sequences of each data rank do not split into {num} equal micro-batches ({EQUATION});"
        f" with micro_batch_num {num}, global_batch_size {' or '.join(nearest_global)} would do"
    )
    return [Violation(key_path=MICRO_BATCH_NUM, message=message, legal=nearest(legal, num))]


def _check_all(size: int, num: int, global_size: int, data_parallel: int) -> Batch | list[Violation]:
    product = size * data_parallel * num
    if product == global_size:
        return Batch(micro_batch_size=size, micro_batch_num=num, global_batch_size=global_size)
    per_micro_batch = size * data_parallel
    others = [
        f"{total} with micro_batch_num {int(total) // per_micro_batch}"
        for total in nearest_multiples(global_size, per_micro_batch)
        if int(total) != product
    ]
    message = (
        f"{global_size} contradicts micro_batch_size {size} x data_parallel {data_parallel}"
        f" x micro_batch_num {num} = {product} ({EQUATION}); make them agree, or set one of the three to null"
    )
    return [Violation(key_path=GLOBAL_BATCH_SIZE, message=message, legal=(str(product), *others))]
