"""Batches of one data rank, read ahead of the training step.

Shapes: B sequences of this data rank (global_batch_size / data_parallel), S seq_length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from meshwright.data.dataset import SampleSource
from meshwright.data.order import Int64s, OneEpochInOrder, SampleOrder
from meshwright.data.pool import OrderedMap
from meshwright.data.steps import StepReader

EVAL_PREFETCH = 2


@dataclass(frozen=True)
class Batch:
    """What one data rank trains on in one optimizer step.

    Attributes:
        tokens: int64 [B, S].
        labels: int64 [B, S], already shifted: ``labels[:, t]`` is the token after ``tokens[:, t]``; -100
            where nothing is supervised.
        positions: int64 [B, S], of each token inside its document; None where attention crosses documents.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that there are, in the order of the fields."""
        pair = (self.tokens, self.labels)
        return pair if self.positions is None else (*pair, self.positions)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with ``change`` made to each of its tensors."""
        return Batch(*map(change, self.tensors))


class Loader:
    """Iterator over the batches of steps ``first_step`` to ``first_step + num_steps - 1``.

    ``step`` is the number of the batch that comes next: the whole position, to be handed to ``build_loader``
    as ``first_step`` on resume. Close it, or use it as a context manager, to end its workers.
    """

    def __init__(self, batches: OrderedMap[int, Batch], first_step: int, num_steps: int) -> None:
        self.step = first_step
        self.end_step = first_step + num_steps
        self._batches = batches

    def __len__(self) -> int:
        return self.end_step - self.step

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The batch of ``step``.

        Raises:
            DataWorkerError: reading it failed (the cause is chained), a worker ended, or it took too long.
        """
        batch = next(self._batches)
        self.step += 1
        return batch

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_loader(
    dataset: SampleSource,
    *,
    order: SampleOrder,
    first_step: int,
    num_steps: int,
    global_batch_size: int,
    data_rank: int,
    data_parallel: int,
    num_parallel_workers: int,
    prefetch_size: int,
    timeout_s: float | None = None,
    pin_memory: bool = False,
) -> Loader:
    """The batches of one data rank (which steps read what: ``StepReader``).

    Args:
        num_parallel_workers: worker processes; 0 reads in a background thread.
        prefetch_size: batches that each worker, or the thread, reads ahead.
        timeout_s: seconds that a batch may let one wait; None for no limit.
        pin_memory: put batches into page-locked memory, for asynchronous copies to a CUDA device.

    Raises:
        ValueError: global_batch_size is no multiple of data_parallel, or order and data set do not belong
            together.
    """
    reader = StepReader(
        dataset=dataset,
        order=order,
        global_batch_size=global_batch_size,
        data_rank=data_rank,
        data_parallel=data_parallel,
    )
    batches = OrderedMap(
        reader,
        range(first_step, first_step + num_steps),
        workers=num_parallel_workers,
        ahead=prefetch_size * max(1, num_parallel_workers),
        # As the log counts them, from 1.
        name=lambda step: f"step {step + 1}",
        finish=_pinned_batch if pin_memory else _batch,
        limit=timeout_s,
    )
    return Loader(batches, first_step, num_steps)


def build_eval_loader(
    dataset: SampleSource,
    *,
    global_batch_size: int,
    data_rank: int,
    data_parallel: int,
    timeout_s: float | None = None,
    max_batches: int | None = None,
) -> Loader:
    """Every sample of a held-out set once, in order, the same number of batches on every data rank.

    The last batch is filled up with rows that have no supervised token. For every token to count once the
    data set is a ``TokenDataset(..., pad_last=True)``.

    Args:
        max_batches: stop after that many.
    """
    num_steps = -(-dataset.num_samples // global_batch_size)
    return build_loader(
        dataset,
        order=OneEpochInOrder(dataset.num_samples),
        first_step=0,
        num_steps=num_steps if max_batches is None else min(num_steps, max_batches),
        global_batch_size=global_batch_size,
        data_rank=data_rank,
        data_parallel=data_parallel,
        num_parallel_workers=0,
        prefetch_size=EVAL_PREFETCH,
        timeout_s=timeout_s,
    )


def _batch(arrays: tuple[Int64s, ...]) -> Batch:
    return Batch(*map(torch.from_numpy, arrays))


def _pinned_batch(arrays: tuple[Int64s, ...]) -> Batch:
    return _batch(arrays).map(Tensor.pin_memory)
