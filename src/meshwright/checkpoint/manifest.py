"""The manifest: the one file that makes a folder a checkpoint.

It is written last, lists every other file with its size and SHA-256, and says whose run it belongs to.
A folder without a readable manifest, or with a file that differs in size from it, is not a checkpoint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.files import FileRecord, read_json, sha256_of, to_json, write_bytes

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """``sequence`` orders the saves of one folder without trusting clocks or step numbers: a run that is
    resumed from an older step writes lower steps later. ``files`` maps relative paths to what they hold."""

    run_id: str
    step: int
    sequence: int
    world_size: int
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        write_bytes(folder / MANIFEST, to_json(asdict(self)))


def read_manifest(folder: Path) -> Manifest:
    """Raises CheckpointError with the reason when the folder holds no manifest that can be used."""
    path = folder / MANIFEST
    try:
        raw = read_json(path)
        if raw["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {raw['format']}; this version reads format {FORMAT}")
        files = {name: FileRecord(**record) for name, record in raw["files"].items()}
        return Manifest(**{**raw, "files": files})
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}: the save never finished") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def problems(folder: Path, manifest: Manifest, *, checksums: bool = False) -> list[str]:
    """What differs between the manifest and the files: missing, wrong size and, on request, wrong sum."""
    found = []
    for name, record in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError:
            found.append(f"{name} is missing")
            continue
        if size != record.size:
            found.append(f"{name} has {size} bytes instead of {record.size}")
        elif checksums and sha256_of(path) != record.sha256:
            found.append(f"{name} has the right size but a wrong checksum")
    return found


def verify(folder: Path) -> list[str]:
    """Read every byte of a checkpoint and list what is wrong with it; an empty list means sound."""
    try:
        return problems(folder, read_manifest(folder), checksums=True)
    except CheckpointError as error:
        return [str(error)]


def require_complete(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose files all have their sizes; raises CheckpointError otherwise."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a checkpoint: no such folder")
    manifest = read_manifest(folder)
    wrong = problems(folder, manifest)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise CheckpointError(f"{folder} is not complete: {wrong[0]}{more}")
    return manifest
