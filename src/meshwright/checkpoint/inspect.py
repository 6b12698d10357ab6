"""What a checkpoint holds, from its manifest, its run state and the names, shapes and dtypes of its tensors.

No tensor is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.checkpoint.files import human_bytes
from meshwright.checkpoint.manifest import Manifest, read_manifest
from meshwright.checkpoint.store import read_state
from meshwright.checkpoint.tensors import stored_tensors

_TENSORS = "tensors"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: the shape of the whole, its dtype (``float32``) and what its values take in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Inspection:
    """A complete checkpoint. ``state`` is the run state as it was saved, ``tensors`` are sorted by name."""

    path: Path
    manifest: Manifest
    state: dict[str, Any]
    tensors: tuple[TensorInfo, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.manifest.files.values())


def inspect(path: Path) -> Inspection:
    """Raises CheckpointError when the checkpoint is not complete."""
    state = read_state(path)
    stored = stored_tensors(path / _TENSORS).items()
    tensors = [
        TensorInfo(name, shape, str(dtype).removeprefix("torch."), math.prod(shape) * dtype.itemsize)
        for name, (shape, dtype) in stored
    ]
    return Inspection(path, read_manifest(path), state, tuple(sorted(tensors, key=lambda t: _order(t.name))))


def tree(tensors: Iterable[TensorInfo]) -> list[str]:
    """Names as a tree, one line for each tensor with shape, dtype and size and for each group with its totals.

    Numbered groups that hold the same, as the layers of a model do, are shown once: ``layers.0-31``.
    """
    root: dict[str, Any] = {}
    for tensor in tensors:
        *groups, leaf = tensor.name.split(".")
        node = root
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = tensor
    return _lines(root, "")


def _lines(node: Mapping[str, Any], indent: str) -> list[str]:
    merged = _merged(node)
    lines = []
    for number, (label, times, child) in enumerate(merged):
        last = number == len(merged) - 1
        lines.append(f"{indent}{'`-- ' if last else '|-- '}{label}  {_described(child, times)}")
        if not isinstance(child, TensorInfo):
            lines += _lines(child, indent + ("    " if last else "|   "))
    return lines


def _merged(node: Mapping[str, Any]) -> list[tuple[str, int, Any]]:
    """(label, how many, child): a group with one child joins it, neighbours with numbers join where they are alike."""
    result: list[tuple[str, int, Any]] = []
    runs: list[list[str]] = []
    for name in node:
        if runs and name.isdigit() and runs[-1][-1].isdigit() and _shape(node[runs[-1][0]]) == _shape(node[name]):
            runs[-1].append(name)
        else:
            runs.append([name])
    for run in runs:
        label, child = run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}", node[run[0]]
        while not isinstance(child, TensorInfo) and len(child) == 1:
            [(only, below)] = child.items()
            label, child = f"{label}.{only}", below
        result.append((label, len(run), child))
    return result


def _shape(node: Any) -> Any:
    """What must be equal for two groups to be alike: everything but the names above."""
    if isinstance(node, TensorInfo):
        return node.shape, node.dtype
    return {name: _shape(child) for name, child in node.items()}


def _described(node: Any, times: int) -> str:
    each = f"{times} x " if times > 1 else ""
    if isinstance(node, TensorInfo):
        return f"{each}{list(node.shape)} {node.dtype} {human_bytes(node.bytes)}"
    inside = list(_leaves(node))
    values, size = sum(t.values for t in inside), sum(t.bytes for t in inside)
    return f"{each}{values:,} values, {human_bytes(size)}"


def _leaves(node: Mapping[str, Any]) -> Iterable[TensorInfo]:
    for child in node.values():
        if isinstance(child, TensorInfo):
            yield child
        else:
            yield from _leaves(child)


def _order(name: str) -> list[tuple[int, int, str]]:
    """Sorts ``layers.2`` before ``layers.10``."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]
