"""run.json: what was run, with what, on what."""

import json
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import meshwright
from meshwright.config.run import Run, config_hash, resolved_yaml

PACKAGES = ("torch", "numpy", "pydantic", "tokenizers")


def git_state() -> dict[str, Any]:
    """Commit of the source tree and whether it has changes; empty for an installed package."""
    folder = Path(meshwright.__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    tracked = git("ls-files", "--error-unmatch", "__init__.py")
    commit = git("rev-parse", "HEAD") if tracked else None
    return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--", "."))} if commit else {}


def package_versions() -> dict[str, str]:
    """Versions of the packages that results depend on."""
    versions = {"meshwright": meshwright.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def write_record(
    path: Path,
    run: Run,
    *,
    run_id: str,
    data_fingerprint: str,
    data: Sequence[str],
    device: str,
    resumed: str | None,
) -> None:
    """Write or extend the record of a run directory: one entry for each start. ``data`` says what the run reads."""
    starts: list[dict[str, Any]] = []
    if path.exists():
        starts = json.loads(path.read_text(encoding="utf-8")).get("starts", [])
    starts.append(
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "resumed_from": resumed,
            "command": sys.argv,
            "host": socket.gethostname(),
            "device": device,
            "world_size": run.layout.world_size,
            "layout": run.layout.short(),
            "config_hash": config_hash(run),
            "data_fingerprint": data_fingerprint,
            "data": list(data),
            "git": git_state(),
            "packages": package_versions(),
        }
    )
    beside = path.with_suffix(".json.partial")
    body = {"run_id": run_id, "starts": starts, "config": resolved_yaml(run)}
    beside.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)
