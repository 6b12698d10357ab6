"""Folders of checkpoints: their names, the newest complete one, and which ones may go.

One root may hold ``step-00000100`` (complete), ``.step-00000200.partial`` (being written, or interrupted),
``.step-00000100.replaced`` (the older save of a step saved again, until the new one stands) and
``.step-00000100.removed`` (being deleted). Nothing here needs torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.files import read_json, remove_folder
from meshwright.checkpoint.manifest import MANIFEST, Manifest, problems, read_manifest

OWNER = "owner.json"
_NAME = re.compile(r"(\.?)step-(\d{8,})(?:\.(partial|replaced|removed))?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """``path``: the newest complete checkpoint, None if there is none; ``skipped``: what was passed over
    on the way to it, with the reason."""

    path: Path | None
    step: int | None = None
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def beside(folder: Path, kind: str) -> Path:
    """The hidden sibling of a checkpoint folder; ``kind`` is partial, replaced or removed."""
    return folder.with_name(f".{folder.name}.{kind}")


def folders(root: Path) -> Iterator[tuple[Path, str]]:
    """Every folder that carries a checkpoint's name, with its kind ('' for a committed one)."""
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir() and bool(match[1]) == bool(match[3]):
            yield path, match[3] or ""


def checkpoints_in(target: Path) -> list[Path]:
    """The committed checkpoints of a run directory or of a folder of checkpoints, damaged ones too, by step; or
    ``target`` alone where it is one, complete or not."""
    if (target / MANIFEST).exists() or _NAME.fullmatch(target.name):
        return [target] if target.is_dir() else []
    roots = (target, target / "checkpoints")
    return [path for root in roots for path, kind in folders(root) if not kind]


def newest_in(target: Path) -> Path:
    """``target`` where it is a checkpoint, else the newest complete one of a run directory or folder of checkpoints.

    Raises CheckpointError that says what was passed over and why where there is none.
    """
    if checkpoints_in(target) == [target]:
        return target
    found = [find_latest(root) for root in (target, target / "checkpoints")]
    for one in found:
        if one.path is not None:
            return one.path
    skipped = "".join(f"\n  passed over {path}: {reason}" for one in found for path, reason in one.skipped)
    raise CheckpointError(f"{target}: no complete checkpoint here{skipped}")


def find_latest(root: Path, run_id: str | None = None) -> Found:
    """The checkpoint saved last among the complete ones under ``root`` (of run ``run_id``, if given).

    Saved last is not always the highest step: a run that went back to an older checkpoint goes on there.
    """
    skipped: list[tuple[Path, str]] = []
    candidates: list[tuple[Path, Manifest]] = []
    for path, kind in folders(root):
        if kind == "partial":
            skipped.append((path, "the save was interrupted before it was complete"))
        elif kind != "removed" and not (kind == "replaced" and _committed(path).is_dir()):
            try:
                candidates.append((path, read_manifest(path)))
            except CheckpointError as error:
                skipped.append((path, str(error)))
    for path, manifest in sorted(candidates, key=lambda c: c[1].sequence, reverse=True):
        if run_id is not None and manifest.run_id != run_id:
            skipped.append((path, f"it belongs to another run ({manifest.run_id})"))
        elif wrong := problems(path, manifest):
            skipped.append((path, "; ".join(wrong[:3])))
        else:
            return Found(path, manifest.step, skipped)
    return Found(None, None, skipped)


def next_sequence(root: Path) -> int:
    """One more than the highest sequence number under ``root``, whichever run it is of."""
    return 1 + max((m.sequence for _, m in _manifests(root)), default=0)


def bytes_held(root: Path, run_id: str) -> list[int]:
    """Bytes of each committed checkpoint of a run under ``root``, damaged ones as their manifests say."""
    own = [m for p, m in _manifests(root) if m.run_id == run_id and p.name[0] != "."]
    return [sum(record.size for record in manifest.files.values()) for manifest in own]


def owner(folder: Path) -> str | None:
    """The run that a folder, complete or not, belongs to; None where nothing readable says so."""
    try:
        return read_manifest(folder).run_id
    except CheckpointError:
        pass
    try:
        return str(read_json(folder / OWNER)["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def prune(root: Path, run_id: str, keep: int | None) -> list[Path]:
    """Remove what this run no longer needs; return the committed folders that went.

    Keeps the ``keep`` complete checkpoints saved last (all of them for 0 or None). Incomplete ones are not
    counted and go once they are older than the oldest one kept. Other runs' folders are never touched.
    """
    for path, kind in folders(root):
        if kind and _left_over(path, kind, run_id):
            remove_folder(path, last=(MANIFEST, OWNER))
    if not keep:
        return []
    own = sorted((m.sequence, p, m) for p, m in _manifests(root) if m.run_id == run_id and p.name[0] != ".")
    complete = [sequence for sequence, path, manifest in own if not problems(path, manifest)]
    if len(complete) <= keep:
        return []
    gone = [path for sequence, path, _ in own if sequence < complete[-keep]]
    for path in gone:
        discard(path)
    return gone


def discard(folder: Path) -> None:
    """Delete a committed checkpoint; it stops being one at once, however long the deletion takes."""
    doomed = beside(folder, "removed")
    folder.rename(doomed)
    remove_folder(doomed, last=(MANIFEST, OWNER))


def set_aside(folder: Path) -> Path:
    """Move a folder that nobody can read out of the way without deleting it."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.unreadable-{number}")).exists():
        number += 1
    folder.rename(target)
    _log.warning("%s has no readable manifest and was moved to %s", folder, target.name)
    return target


def _left_over(hidden: Path, kind: str, run_id: str) -> bool:
    """Whether a hidden folder is this run's and of no more use, or what is left of a removal: nothing."""
    if kind == "replaced" and not _committed(hidden).is_dir():
        return False
    return owner(hidden) == run_id or (kind == "removed" and not any(hidden.iterdir()))


def _committed(hidden: Path) -> Path:
    return hidden.with_name(hidden.name[1:].rsplit(".", 1)[0])


def _manifests(root: Path) -> Iterator[tuple[Path, Manifest]]:
    for path, kind in folders(root):
        if kind in ("", "replaced"):
            try:
                yield path, read_manifest(path)
            except CheckpointError:
                continue
