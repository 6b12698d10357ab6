"""Inputs by what they lie in, for a table that people can read."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.data.inputs.part import shown

MOST_GROUPS = 50


@dataclass(frozen=True)
class InputGroups:
    """Names of groups of files: what lies directly in the deepest folder that has them all, or that folder.

    Attributes:
        folder: absolute path of that folder.
        shown: its path as people gave it.
        split: whether it has no more than ``MOST_GROUPS`` groups.
    """

    folder: str
    shown: str
    split: bool

    def name(self, path: Path) -> str:
        """Group of a file."""
        inside = os.path.relpath(os.path.abspath(path), self.folder)
        return shown(os.path.join(self.shown, inside.split(os.sep)[0]) if self.split else self.shown)


def group_inputs(files: Sequence[Path]) -> InputGroups:
    """The groups of some files, at least one."""
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files])
    shown = folder if any(path.is_absolute() for path in files) else os.path.relpath(folder)
    groups = InputGroups(folder, "" if shown == os.curdir else shown, split=True)
    if len({groups.name(path) for path in files}) > MOST_GROUPS:
        return InputGroups(folder, shown, split=False)
    return groups
