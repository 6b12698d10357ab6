"""Question: what is asked of the planner, and what an answer may vary."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from meshwright.plan.engines import Engine
from meshwright.plan.job import Adapter
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout, PipelineSchedule
from meshwright.spec.model import ModelSpec
from meshwright.spec.training import TrainSpec

Objective = Literal["time", "memory"]
RecomputeChoice = Literal["none", "select", "all"]
DEGREE_KEYS = ("dp", "tp", "pp", "cp", "ep")
NUMBER_KEYS = (*DEGREE_KEYS, "zero", "group", "mbs", "vpp")
WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "recompute": get_args(RecomputeChoice),
    "schedule": get_args(PipelineSchedule),
    "sp": ("on", "off"),
}
FIX_KEYS = (*NUMBER_KEYS, *WORD_KEYS)
COMPACT = re.compile(rf"({'|'.join(NUMBER_KEYS)})(\d+)\Z")
Fixed = Mapping[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Question:
    """This model, this step, these devices: which split?

    Attributes:
        layout: the config's own; mesh order and message fusion are kept from it.
        train: the config's own step; ``global_batch_size`` and ``seq_length`` stay as they are.
        fixed: what an answer may not vary, by the keys of `FIX_KEYS`.
        max_memory: bytes that may be used per device; None is the device's usable memory.
        hypothetical: also layouts that Meshwright does not support yet.
    """

    model: ModelSpec
    layout: Layout
    train: TrainSpec
    cluster: Cluster
    engine: Engine
    adapter: Adapter | None = None
    fixed: Fixed = field(default_factory=dict)
    max_memory: float | None = None
    objective: Objective = "time"
    hypothetical: bool = False

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step, the same for every answer."""
        return self.train.batch.global_batch_size

    @property
    def limit(self) -> float:
        """Bytes of a device that a layout is held against."""
        usable = self.cluster.device.memory_bytes
        return usable if self.max_memory is None else min(self.max_memory, usable)

    @property
    def supported_only(self) -> bool:
        """Whether answers must be layouts that Meshwright trains today."""
        return self.engine.name == "meshwright" and not self.hypothetical


def parse_fixed(texts: Iterable[str]) -> dict[str, int | str]:
    """``tp=2`` or ``tp=2,zero=1``, any number of them.

    Raises:
        ValueError: an unknown key or an impossible value; the message names the legal ones.
    """
    fixed: dict[str, int | str] = {}
    for item in (item for text in texts for item in text.split(",") if item.strip()):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise ValueError(f"{item.strip()!r} is not KEY=VALUE; keys: {', '.join(FIX_KEYS)}")
        fixed[key] = _value(key, value)
    return fixed


def parse_layout(text: str) -> dict[str, int | str]:
    """A layout as the table prints it: ``dp2 tp2 pp2 zero1 mbs1 recompute=all``. Degrees not named are 1.

    Raises:
        ValueError: a word that says nothing about a layout.
    """
    fixed: dict[str, int | str] = {}
    for word in text.replace(",", " ").split():
        if compact := COMPACT.match(word):
            fixed[compact[1]] = _value(compact[1], compact[2])
        elif word in WORD_KEYS["schedule"]:
            fixed["schedule"] = word
        elif "=" in word:
            fixed |= parse_fixed([word])
        else:
            raise ValueError(
                f"{word!r} names no part of a layout; write it as in the table: dp2 tp2 pp2 zero1 mbs1 recompute=all"
            )
    if not any(key in fixed for key in DEGREE_KEYS):
        raise ValueError(f"{text!r} names no degree; write it as in the table: dp2 tp2 pp2 zero1")
    return dict.fromkeys(DEGREE_KEYS, 1) | fixed


def _value(key: str, text: str) -> int | str:
    if key in WORD_KEYS:
        if text in WORD_KEYS[key]:
            return text
        raise ValueError(f"{key}={text}: legal are {', '.join(WORD_KEYS[key])}")
    if key not in NUMBER_KEYS:
        near = difflib.get_close_matches(key, FIX_KEYS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"no key {key!r} to fix; {hint}keys: {', '.join(FIX_KEYS)}")
    lowest = 0 if key == "zero" else 1
    if not text.isascii() or not text.isdigit() or int(text) < lowest or (key == "zero" and int(text) > 3):
        legal = "0, 1, 2, 3" if key == "zero" else "a whole number from 1"
        raise ValueError(f"{key}={text}: legal is {legal}")
    return int(text)
