"""A corpus that every machine has: the source files of Python's own standard library."""

import hashlib
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# Not the standard library, not written by people (codec tables), or much of the same (tests).
LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "encodings",
    "pydoc_data",
    "__pycache__",
    "lib2to3",
    "turtledemo",
    "idlelib",
}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What was copied: number of files and their bytes, and what there was to choose from."""

    files: int
    size: int
    files_in_all: int
    size_in_all: int


def copy_standard_library(folder: Path, max_bytes: int) -> Corpus:
    """Copy source files of the running interpreter into ``folder``, at most ``max_bytes``.

    Which ones fit is decided by a hash of their names, so that a part of the library is a fair sample of it.

    Raises:
        OSError: the library has no source files here, or a file cannot be copied.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    names = [name for name in names if not LEFT_OUT.intersection(name.parts)]
    if not names:
        raise OSError(f"{root}: this Python was installed without the source files of its standard library")
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).hexdigest())
    sizes = {name: (root / name).stat().st_size for name in names}
    files = total = 0
    for name in names:
        if total + sizes[name] > max_bytes:
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, target)
        files, total = files + 1, total + sizes[name]
    return Corpus(files=files, size=total, files_in_all=len(names), size_in_all=sum(sizes.values()))
