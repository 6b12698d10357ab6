"""Doing something on every rank and agreeing on how it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from meshwright.checkpoint.errors import CheckpointError, Failure, PeerLost, failed

T = TypeVar("T")


class Ranks:
    """The processes that save or load together; one process without a process group.

    ``group`` should be a gloo group where tensors live on an accelerator: only small Python objects
    travel through it. ``alone`` ignores an initialised process group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, alone: bool = False) -> None:
        self.group = group
        self.together = not alone and dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.together else 0
        self.index = dist.get_rank(group) if self.together else 0
        self.size = dist.get_world_size(group) if self.together else 1

    @property
    def is_first(self) -> bool:
        """Whether this rank does what is done once (first of the group)."""
        return self.index == 0

    def global_rank(self, index: int) -> int:
        """The rank in the default group of the group's member ``index``."""
        return dist.get_global_rank(self.group, index) if self.group is not None else index

    def gather(self, value: T, what: str = "checkpoint") -> list[T]:
        """Every rank's ``value``, in rank order, on every rank.

        Raises PeerLost when a process has died or the group timed out.
        """
        if not self.together:
            return [value]
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value, group=self.group)
        except RuntimeError as error:
            raise PeerLost(
                f"{what}: rank {self.rank} lost contact with another rank, whose own log has the cause ({error})"
            ) from error
        return values

    def agree(self, what: str, work: Callable[[], T]) -> list[T]:
        """Run ``work`` on every rank; return all results, or raise the same error on every rank.

        Raises CheckpointError naming the ranks that failed and why, PeerLost as ``gather``.
        """
        outcome: T | Failure
        local: Exception | None = None
        try:
            outcome = work()
        except PeerLost:
            raise
        except Exception as error:
            local, outcome = error, Failure.of(self.rank, error)
        outcomes = self.gather(outcome, what)
        failures = [o for o in outcomes if isinstance(o, Failure)]
        if not failures:
            return [o for o in outcomes if not isinstance(o, Failure)]
        if not self.together and isinstance(local, CheckpointError):
            raise local
        raise failed(what, failures) from local

    def first(self, what: str, work: Callable[[], T]) -> T:
        """Run ``work`` on the first rank only; its result, or its error, on every rank."""
        results = self.agree(what, lambda: work() if self.is_first else None)
        result: Any = results[0]
        return result
