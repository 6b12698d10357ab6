"""What a memory prediction says: bytes by category at each candidate moment of each pipeline stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Category = Literal[
    "weights", "gradients", "optimizer", "activations", "logits", "communication", "temporaries", "framework"
]
CATEGORIES: tuple[Category, ...] = (
    "weights", "gradients", "optimizer", "activations", "logits", "communication", "temporaries", "framework"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Live bytes at one point of the step.

    Attributes:
        name: where in the step: ``loss``, ``backward of the top layer``, ``optimizer step``...
        parts: bytes by category; absent is 0.
    """

    name: str
    parts: Mapping[Category, float]

    @property
    def total(self) -> float:
        """Bytes of all categories."""
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Memory of the ranks of one pipeline stage.

    Attributes:
        moments: candidates for the peak, in the order of the step.
        slack: bytes that the caching allocator reserves beyond the peak of live tensors.
        device_constant: bytes outside the allocator: device context, communicators.
    """

    stage: int
    moments: tuple[Moment, ...]
    slack: float = 0.0
    device_constant: float = 0.0

    @cached_property
    def peak(self) -> Moment:
        """The worst moment."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def allocated(self) -> float:
        """Peak of live tensors (``max_memory_allocated``), bytes."""
        return self.peak.total

    @property
    def reserved(self) -> float:
        """Peak that the allocator holds (``max_memory_reserved``), bytes."""
        return self.allocated + self.slack

    @property
    def device_total(self) -> float:
        """What the device shows as used, bytes."""
        return self.reserved + self.device_constant


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """Memory of every pipeline stage; ranks of one stage are alike."""

    stages: tuple[StageMemory, ...]

    @property
    def worst(self) -> StageMemory:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: stage.device_total)
