"""How many optimizer steps a run has, and the learning rate of each."""

import math
from fractions import Fraction

from meshwright.spec.training import Duration, OptimizerSpec, ScheduleSpec


def planned_steps(
    duration: Duration, tokens_per_step: int, global_batch_size: int, num_samples: int | None = None
) -> int:
    """Optimizer steps of a run.

    ``train_tokens`` rounds up, so that at least that many tokens are read. ``epochs`` rounds down: the sample
    stream goes on over epoch ends, so only the last incomplete global batch of the whole run is left out.

    Args:
        duration: the length as asked for.
        tokens_per_step: global_batch_size x seq_length.
        global_batch_size: sequences per step.
        num_samples: sequences in the data set; needed for ``epochs`` only.

    Raises:
        ValueError: not exactly one length is given, epochs without a data set, or no step comes out.
    """
    given = [name for name in ("train_steps", "train_tokens", "epochs") if getattr(duration, name) is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of train_steps, train_tokens, epochs; given: {', '.join(given) or 'none'}")
    if duration.train_steps is not None:
        steps = duration.train_steps
    elif duration.train_tokens is not None:
        steps = -(-duration.train_tokens // tokens_per_step)
    elif num_samples is None:
        raise ValueError("epochs can only be turned into steps once the number of samples is known")
    else:
        steps = _samples(duration, num_samples) // global_batch_size
    if steps < 1:
        raise ValueError(f"{describe_duration(duration, tokens_per_step, global_batch_size, num_samples)}")
    return steps


def describe_duration(
    duration: Duration, tokens_per_step: int, global_batch_size: int, num_samples: int | None = None
) -> str:
    """One line for the log that shows how the number of steps came about, with the last-batch rule."""
    if duration.train_steps is not None:
        return f"train_steps {duration.train_steps} x {tokens_per_step} tokens per step"
    if duration.train_tokens is not None:
        steps = -(-duration.train_tokens // tokens_per_step)
        return (
            f"train_tokens {duration.train_tokens} / {tokens_per_step} tokens per step = {steps} steps"
            f" (rounded up, reads {steps * tokens_per_step} tokens)"
        )
    if duration.epochs is None or num_samples is None:
        return "the number of steps is not known before the data"
    total = _samples(duration, num_samples)
    steps, left = divmod(total, global_batch_size)
    return (
        f"epochs {duration.epochs:g} x {num_samples} samples / global_batch_size {global_batch_size}"
        f" = {steps} steps (batches run on over epoch ends; the last {left} samples do not fill a batch"
        f" and are left out)"
    )


def warmup_steps(schedule: ScheduleSpec, total_steps: int) -> int:
    """Steps of linear warm-up; a ratio rounds up. May exceed the run, which then ends while warming up.

    Raises:
        ValueError: both ``warmup_steps`` and ``warmup_ratio`` are set.
    """
    if schedule.warmup_steps is not None and schedule.warmup_ratio is not None:
        raise ValueError("give at most one of warmup_steps and warmup_ratio")
    if schedule.warmup_steps is not None:
        return schedule.warmup_steps
    return _share(schedule.warmup_ratio or 0.0, total_steps)


def learning_rate(step: int, *, optimizer: OptimizerSpec, schedule: ScheduleSpec, total_steps: int) -> float:
    """Learning rate that optimizer step number ``step``, counted from 1, uses.

    Rises linearly to the peak at step ``warmup_steps`` (at step 1 without warm-up) and reaches
    ``min_lr_ratio`` x peak at ``total_steps``, where it stays. ``constant`` stays at the peak. ``wsd``
    (arXiv:2404.06395) holds the peak and falls linearly over the last ``decay_ratio`` of the run.

    Raises:
        ValueError: ``step`` or ``total_steps`` is below 1.
    """
    if step < 1 or total_steps < 1:
        raise ValueError(f"steps count from 1: step {step}, total_steps {total_steps}")
    peak, warm = optimizer.learning_rate, max(1, warmup_steps(schedule, total_steps))
    if step <= warm:
        return peak * step / warm
    if schedule.type == "constant":
        return peak
    start = warm
    if schedule.type == "wsd":
        start = max(warm, total_steps - _share(schedule.decay_ratio, total_steps))
    if step <= start:
        return peak
    progress = min(1.0, (step - start) / max(1, total_steps - start))
    low = peak * schedule.min_lr_ratio
    if schedule.type == "cosine":
        return low + (peak - low) * (1 + math.cos(math.pi * progress)) / 2
    return peak + (low - peak) * progress


def warmup_notice(schedule: ScheduleSpec, total_steps: int) -> str | None:
    """What to tell a user whose run ends before its warm-up does; None where all is well."""
    warm = warmup_steps(schedule, total_steps)
    if warm <= total_steps:
        return None
    return f"the run ends at step {total_steps}, before its warm-up of {warm} steps: the peak is never reached"


def _share(ratio: float, total: int) -> int:
    # Through the decimal text: 0.07 * 100 is 7.000000000000001 in binary and would round up to 8.
    return math.ceil(Fraction(str(ratio)) * total)


def _samples(duration: Duration, num_samples: int) -> int:
    return math.floor(Fraction(str(duration.epochs)) * num_samples)
