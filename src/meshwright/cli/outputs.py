"""Files that a command is asked to write."""

import os
from pathlib import Path


def unwritable(path: Path) -> str | None:
    """Why a file could not be written, told before the work that it is to hold; None where nothing is in the way."""
    folder = path.resolve().parent
    if not folder.is_dir():
        return f"cannot be written: no such folder {folder}"
    if path.is_dir():
        return "cannot be written: it is a folder"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return "cannot be written: permission denied"
    return None
