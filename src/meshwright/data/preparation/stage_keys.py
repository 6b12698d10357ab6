"""Names of the directories of stages: another for other inputs, settings or versions.

The key of a stage is made of the key of the stage before it and of what the stage itself depends on, so a stage is
done anew when anything changes that its results depend on, and otherwise goes on.
"""

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.data.file_state import FileState
from meshwright.data.preparation.shards import shard_bytes


def inputs_key(files: Sequence[Path], text_key: str) -> str:
    """Key of the inputs: paths, sizes and times of change, how they are cut into shards, and what reads them.

    Raises:
        DataError: a file cannot be read.
    """
    states = [FileState.of(path) for path in files]
    step = shard_bytes(sum(state.size for state in states))
    # Python has the tables of Unicode.
    return next_key("", [text_key, step, states, sys.version_info[:2]], ["meshwright"])


def next_key(before: str, about: Any, packages: Sequence[str] = ()) -> str:
    """Key of a stage: 16 hexadecimal digits.

    Args:
        before: key of the stage before it.
        about: its settings, which JSON can hold.
        packages: whose versions its results depend on.
    """
    content = json.dumps([before, about, [version(package) for package in packages]], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def version(package: str) -> str | None:
    """Version of an installed package; None where it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
