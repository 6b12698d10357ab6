"""The published runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.dryrun_published.differences import (
    ATTENTION,
    BUFFERS,
    EMBEDDING,
    LOSS,
    OPTIMIZER,
    RECOMPUTATION,
    ROOT,
    Difference,
)

FOLDER = Path(__file__).parent
Build = Literal["eager", "compile, float8"]
LIMIT_PCT: dict[Build, float] = {"eager": 5.0, "compile, float8": 10.0}
"""Largest error of reserved memory. A compiler fuses what we run one by one, and float8 has copies of its own: the
second kind is not like for like."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published peak: the source takes the maximum over ranks, which is one of the first stage.

    Attributes:
        config: the nearest run of Meshwright.
        published: GiB; peak of ``reserved_bytes.all`` with expandable segments.
        differences: what the published run did otherwise, in the order in which they are applied. Compiled layers
            have no trace of how RoPE is written.
    """

    name: str
    config: str
    world_size: int
    build: Build
    published: float
    differences: tuple[Difference, ...]

    @property
    def path(self) -> Path:
        """The config's file."""
        return FOLDER / f"{self.config}.yaml"


_EAGER = (RECOMPUTATION, LOSS, OPTIMIZER, ATTENTION, ROOT)
_COMPILED = (LOSS, OPTIMIZER, ROOT)

ROWS = (
    Row(
        name="8B, FSDP 8",
        config="llama3.1-8b-fsdp8",
        world_size=8,
        build="eager",
        published=82.4,
        differences=_EAGER,
    ),
    Row(
        name="8B, FSDP 128",
        config="llama3.1-8b-fsdp128",
        world_size=128,
        build="eager",
        published=67.0,
        differences=_EAGER,
    ),
    Row(
        name="8B, FSDP 8, 32k tokens",
        config="llama3.1-8b-32k",
        world_size=8,
        build="compile, float8",
        published=83.9,
        differences=_COMPILED,
    ),
    Row(
        name="70B, FSDP 32 x TP 8",
        config="llama3.1-70b-fsdp32-tp8",
        world_size=256,
        build="compile, float8",
        published=71.9,
        differences=_COMPILED,
    ),
    Row(
        name="405B, FSDP 8 x TP 8 x PP 8",
        config="llama3.1-405b-fsdp8-tp8-pp8",
        world_size=512,
        build="compile, float8",
        published=82.5,
        differences=(OPTIMIZER, ROOT, BUFFERS, EMBEDDING),
    ),
)
