"""From a step number to the arrays of one data rank: all the state the stream has."""

from dataclasses import dataclass

import numpy as np

from meshwright.data.dataset import SampleSource
from meshwright.data.order import Int64s, SampleOrder


def step_positions(step: int, global_batch_size: int, data_rank: int, data_parallel: int) -> Int64s:
    """Order positions that a data rank takes in a step (from 0), int64 [global_batch_size / data_parallel]."""
    local = global_batch_size // data_parallel
    start = step * global_batch_size + data_rank * local
    return np.arange(start, start + local, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class StepReader:
    """Reads what one data rank trains on in one optimizer step.

    Step ``k`` (from 0) takes order positions ``[k * global_batch_size, (k + 1) * global_batch_size)``; data
    rank ``d`` gets the d-th contiguous part. So the global order knows nothing of the layout, and resuming
    needs nothing but the step number.
    """

    dataset: SampleSource
    order: SampleOrder
    global_batch_size: int
    data_rank: int
    data_parallel: int

    def __post_init__(self) -> None:
        if self.global_batch_size % self.data_parallel:
            raise ValueError(
                f"global_batch_size {self.global_batch_size} is no multiple of data_parallel {self.data_parallel}"
            )
        if not 0 <= self.data_rank < self.data_parallel:
            raise ValueError(f"data_rank {self.data_rank} with data_parallel {self.data_parallel}")
        if self.order.num_samples != self.dataset.num_samples:
            raise ValueError(f"order over {self.order.num_samples} samples, data set of {self.dataset.num_samples}")

    def samples(self, step: int) -> Int64s:
        """Sample numbers of this data rank in a step, int64 [global_batch_size / data_parallel]."""
        return self.order.samples(step_positions(step, self.global_batch_size, self.data_rank, self.data_parallel))

    def __call__(self, step: int) -> tuple[Int64s, ...]:
        """What `SampleSource.batch` gives of a step, int64 [global_batch_size / data_parallel, seq_length] each."""
        return self.dataset.batch(self.samples(step))
