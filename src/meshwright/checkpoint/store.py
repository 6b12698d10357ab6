"""Save and load a run: tensors under any sharding, run state, per-rank state; complete or not there at all.

    path = save(root, 100, tensors=..., state=..., rank_state=..., run_id=..., keep=3)
    found = find_latest(root, run_id)
    state = read_state(found.path)
    load_tensors(found.path, tensors)          # in place, under any other layout

A save writes into a hidden folder beside its target, syncs every file, lists them in a manifest and is
committed by one rename on the first rank. Only then may older checkpoints of the same run go.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.checkpoint import rank_state as rank_codec
from meshwright.checkpoint.dcp_files import Copies
from meshwright.checkpoint.errors import CheckpointError, CheckpointMismatch, PeerLost
from meshwright.checkpoint.files import (
    FileRecord,
    free_bytes,
    human_bytes,
    read_json,
    remove_folder,
    sync_folder,
    to_json,
    write_bytes,
)
from meshwright.checkpoint.locate import (
    OWNER,
    Found,
    beside,
    find_latest,
    folder_name,
    next_sequence,
    owner,
    prune,
    set_aside,
)
from meshwright.checkpoint.manifest import MANIFEST, Manifest, require_complete, verify
from meshwright.checkpoint.ranks import Ranks
from meshwright.checkpoint.shared import require_visible
from meshwright.checkpoint.tensors import (
    Description,
    described,
    mismatches,
    read_tensors,
    require_fit,
    stored_tensors,
    write_tensors,
)

__all__ = [
    "CheckpointError",
    "CheckpointMismatch",
    "Found",
    "PeerLost",
    "find_latest",
    "load_rank_state",
    "load_tensors",
    "read_state",
    "save",
    "tensor_metadata",
    "verify",
]

TENSORS, RANKS, STATE = "tensors", "ranks", "state.json"
_log = logging.getLogger(__name__)


def save(
    root: Path,
    step: int,
    *,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    rank_state: Mapping[str, Any],
    run_id: str,
    keep: int | None = None,
    group: dist.ProcessGroup | None = None,
    copies: Copies | None = None,
) -> Path:
    """Save one step; every rank of ``group`` calls it. Returns the committed folder.

    Args:
        root: where checkpoints live; shared by all ranks' machines.
        tensors: this rank's tensors by name, plain or DTensor. Ranks may hold different names; a block that
            several ranks hold is written once. Where two pipeline stages hold copies of one tied weight, only
            one of them passes it.
        state: what is the same on all ranks, as JSON says it (tuples come back as lists, keys as strings); the
            first rank's is written.
        rank_state: this rank's own: tensors, bytes or JSON values by name.
        run_id: whose checkpoint this is. Folders of other runs are never overwritten, counted or removed.
        keep: how many complete checkpoints of this run stay; 0 or None keeps all.
        group: a gloo group of the ranks that save together; None is the default group or a single process.
        copies: where the tensors are copied to once it is known which rank writes what; None writes them as they are.

    Raises:
        CheckpointError on every rank, naming the ranks that failed and why; what was saved before is intact.
        CheckpointMismatch when the place is taken by another run. PeerLost when a rank died.
    """
    root, ranks = Path(root), Ranks(group)
    final = root / folder_name(step)
    partial = beside(final, "partial")
    what = f"saving step {step} to {final}"
    free = ranks.first(what, lambda: prepare(final, partial, run_id))
    try:
        ranks.agree(what, lambda: require_visible(partial / OWNER))
        files = _write(partial, tensors, state, rank_state, ranks, copies)
        ranks.first(what, lambda: commit(final, partial, files, _manifest(root, step, run_id, ranks.size)))
    except PeerLost:
        raise
    except CheckpointError as error:
        # Every rank has stopped writing by now; a full disk gets its space back.
        if ranks.is_first:
            shutil.rmtree(partial, ignore_errors=True)
        raise _explained(error, what, root, run_id, free) from error
    if ranks.is_first:
        _prune(root, run_id, keep)
    return final


def read_state(path: Path) -> dict[str, Any]:
    """The run state saved with a checkpoint. Raises CheckpointError when the checkpoint is not complete."""
    path = Path(path)
    require_complete(path)
    try:
        state: dict[str, Any] = read_json(path / STATE)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / STATE}: {error}") from error
    return state


def load_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    prefix: str | tuple[str, ...] = "",
    cast: bool = False,
    group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
) -> None:
    """Fill this rank's ``tensors`` in place from a checkpoint of any layout.

    Every stored name that starts with ``prefix`` must be wanted by some rank of ``group``: evaluation loads the
    weights alone with ``prefix="model."``, say. ``cast`` lets dtypes differ. ``no_dist`` loads on this rank
    alone even inside a process group.

    Raises:
        CheckpointMismatch listing all names that are missing, unexpected, or of another shape or dtype.
        CheckpointError when files are missing or unreadable. Both on every rank, before anything is changed
        in the first case.
    """
    path, ranks = Path(path), Ranks(group, alone=no_dist)
    what = f"loading {path}"
    stored = ranks.first(what, lambda: tensor_metadata(path))
    wanted: dict[str, Description] = {}
    for one in ranks.gather(described(tensors), what):
        wanted.update(one)
    lines = mismatches(wanted, stored, expected=lambda name: name.startswith(prefix), cast=cast)
    require_fit(path, lines)
    ranks.agree(what, lambda: read_tensors(path / TENSORS, tensors, ranks))


def tensor_metadata(path: Path) -> dict[str, Description]:
    """Global shape and dtype of every tensor, by name. Raises CheckpointError when not complete."""
    require_complete(Path(path))
    return stored_tensors(Path(path) / TENSORS)


def load_rank_state(path: Path, rank: int) -> dict[str, Any] | None:
    """What rank ``rank`` passed as ``rank_state``; None where the checkpoint was saved by fewer ranks."""
    file = Path(path) / RANKS / _rank_file(rank)
    if not file.exists():
        return None
    try:
        return rank_codec.decode(read_json(file))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file}: {error}") from error


def prepare(final: Path, partial: Path, run_id: str) -> int:
    """Clear the way without touching what belongs to others; return the free bytes."""
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists() and owner(final) is None:
        set_aside(final)
    for folder in (final, partial):
        if folder.exists() and owner(folder) not in (None, run_id):
            raise CheckpointMismatch(
                f"{folder} belongs to another run ({owner(folder)}, this one is {run_id}); "
                "move it away or choose another output_dir"
            )
    if partial.exists():
        remove_folder(partial, last=(MANIFEST, OWNER))
    partial.mkdir()
    write_bytes(partial / OWNER, to_json({"run_id": run_id}))
    (partial / TENSORS).mkdir()
    (partial / RANKS).mkdir()
    return free_bytes(partial)


def _write(
    partial: Path,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    rank_state: Mapping[str, Any],
    ranks: Ranks,
    copies: Copies | None,
) -> dict[str, FileRecord]:
    """Write all files; every rank gets the records of all, by path relative to the checkpoint."""
    tensor_files, tensor_bytes = write_tensors(partial / TENSORS, tensors, ranks, copies)
    json_bytes = 0

    def own_files() -> dict[str, FileRecord]:
        nonlocal json_bytes
        texts = {f"{RANKS}/{_rank_file(ranks.rank)}": to_json(rank_codec.encode(rank_state))}
        if ranks.is_first:
            texts[STATE] = to_json(dict(state))
        json_bytes = sum(map(len, texts.values()))
        records = {f"{TENSORS}/{name}": record for name, record in tensor_files.items()}
        return records | {name: write_bytes(partial / name, text) for name, text in texts.items()}

    try:
        everyone = ranks.agree("writing run state", own_files)
    except PeerLost:
        raise
    except CheckpointError as error:
        error.needed = sum(ranks.gather(tensor_bytes + json_bytes))
        raise
    return {name: record for records in everyone for name, record in records.items()}


def _manifest(root: Path, step: int, run_id: str, world_size: int) -> Manifest:
    versions = {
        "meshwright": importlib.metadata.version("meshwright"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return Manifest(run_id, step, next_sequence(root), world_size, versions)


def commit(final: Path, partial: Path, files: dict[str, FileRecord], manifest: Manifest) -> None:
    """Make what was written aside the checkpoint ``final``, by one rename."""
    Manifest(**{**vars(manifest), "files": files}).write(partial)
    # Not before: a folder that is killed here must say whose it is, or nobody removes it.
    (partial / OWNER).unlink()
    for folder in (partial / TENSORS, partial / RANKS, partial):
        sync_folder(folder)
    # A folder cannot be renamed over another one: the older save of this step steps aside, still findable.
    replaced = beside(final, "replaced")
    if final.exists():
        if replaced.exists():
            remove_folder(replaced, last=(MANIFEST,))
        os.rename(final, replaced)
    os.rename(partial, final)
    sync_folder(final.parent)


def _prune(root: Path, run_id: str, keep: int | None) -> None:
    try:
        prune(root, run_id, keep)
    except OSError as error:
        # The new checkpoint stands; failing the run for an old one that would not go helps nobody.
        _log.warning("could not remove old checkpoints under %s: %s", root, error)


def _explained(error: CheckpointError, what: str, root: Path, run_id: str, free: int) -> CheckpointError:
    latest = find_latest(root, run_id).path
    intact = f"last complete checkpoint: {latest}" if latest else "there is no complete checkpoint yet"
    message = f"{what}: {error}; {intact}"
    if any(failure.disk_full for failure in error.failures):
        space = f"needs about {human_bytes(error.needed)}, {human_bytes(free)} were free before it"
        message = f"{what}: no space left on the file system of {root}: the checkpoint {space}; {intact}"
    return type(error)(message, error.failures)


def _rank_file(rank: int) -> str:
    return f"{rank:05d}.json"
