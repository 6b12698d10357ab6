"""What a time prediction says: seconds of one optimizer step by term, and the messages behind them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Term = Literal["compute", "recompute", "tensor", "context", "expert", "pipeline", "data", "bubble", "optimizer", "host"]
TERMS: tuple[Term, ...] = (
    "compute", "recompute", "tensor", "context", "expert", "pipeline", "data", "bubble", "optimizer", "host"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Messages of one mesh axis in one step, of the busiest rank.

    Attributes:
        bytes: sent by the rank in one step.
        messages: collectives or sends in one step.
        link: name of the slowest link they cross.
        seconds / exposed: time they take, and the part that compute does not hide.
    """

    axis: Literal["tensor", "context", "expert", "pipeline", "data"]
    collective: str
    bytes: float
    messages: int
    link: str
    seconds: float
    exposed: float


@dataclass(frozen=True, kw_only=True)
class Span:
    """One forward or backward pass of a micro-batch on a stage, for timelines; seconds from the step's start."""

    stage: int
    kind: Literal["forward", "backward"]
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class TimeReport:
    """Predicted time of one optimizer step.

    Attributes:
        terms: seconds by term; only exposed time counts, so that they add up to ``seconds``.
        model_flops: useful FLOPs of the step over all devices (6 N per token and attention halved for causality).
    """

    seconds: float
    terms: Mapping[Term, float]
    traffic: tuple[Traffic, ...]
    tokens_per_second: float
    model_flops: float
    mfu: float
