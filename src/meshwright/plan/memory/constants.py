"""Fitted constants of the memory model, at most four for an engine on a device family.

They are fitted by ``benchmarks/published/fit_memory.py`` and stored in ``constants.json`` as
``{engine: {family: {name: value}}}``. What was not fitted reads the ``default`` entries. What a framework's source
fixes, such as bytes per parameter or which tensors autograd saves, is no fitted constant.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from meshwright.spec.cluster import GIB


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the caching allocator and the driver take beyond live tensors.

    Attributes:
        gaps: bytes reserved but not live, per byte of activations and logits at the peak: blocks of unequal size.
        stream_gaps: the same on top where tensor parallelism moves activations on streams of their own, whose blocks
            nothing else may use.
        backlog: share of the messages of tensor parallelism in one micro-batch that wait for their stream at the peak,
            where nothing else of the schedule holds the host back (PyTorch frees a tensor that another stream uses
            only after that stream has passed).
        reserve: GiB of small pools and of blocks that are kept for reuse, whatever the size of the job.
        context: GiB that a run needs free beside them: device context, kernels, communicators, and room to place the
            largest block.
    """

    gaps: float
    stream_gaps: float
    backlog: float
    reserve: float
    context: float

    @property
    def context_bytes(self) -> float:
        """``context`` in bytes."""
        return self.context * GIB


@lru_cache
def table() -> dict[str, dict[str, dict[str, float]]]:
    """The stored constants, by engine and device family."""
    return json.loads(files(__package__).joinpath("constants.json").read_text())  # type: ignore[no-any-return]


@lru_cache
def constants(engine: str, family: str) -> Constants:
    """Constants of an engine on a device family: fitted for the pair, else for the engine, else for all."""
    stored = table()
    of_engine = stored.get(engine, {})
    return Constants(**(stored["default"]["default"] | of_engine.get("default", {}) | of_engine.get(family, {})))
