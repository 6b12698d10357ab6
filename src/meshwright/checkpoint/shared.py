"""Whether all ranks see one folder: machines that each have their own would each save a part of a checkpoint."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path

import torch.distributed as dist

from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.ranks import Ranks


def require_shared(root: Path, group: dist.ProcessGroup | None = None) -> None:
    """Let every rank of ``group`` look for a file that the first one makes under ``root``, made where it is missing.

    Raises CheckpointError on every rank, naming the ranks that do not see it, or why nothing can be written there.
    """
    ranks, what = Ranks(group), f"preparing {root}"
    name = ranks.first(what, lambda: _mark(root))
    try:
        ranks.agree(what, lambda: require_visible(root / name))
    finally:
        if ranks.is_first:
            (root / name).unlink()


def require_visible(path: Path) -> None:
    """Raises CheckpointError where this rank does not see what the first one made."""
    if not path.exists():
        raise CheckpointError(
            f"{path}, made by the first rank, is not visible here ({platform.node()}): "
            "checkpoints need one file system that all machines share"
        )


def _mark(root: Path) -> str:
    root.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(prefix=".shared-", dir=root)
    os.close(descriptor)
    return Path(path).name
