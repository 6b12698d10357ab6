"""Directories that lie below others, and patterns over them: each is searched once, whatever links there are."""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from meshwright.data.errors import DataError

ANY_DEPTH = re.compile(r"(?:^|(?<=/))\*\*(?:/|$)")


def walk(tops: Iterable[str | Path]) -> Iterator[tuple[str, list[str], list[str]]]:
    """``os.walk`` through links, without names that start with a dot; directories sorted.

    Raises:
        DataError: a directory cannot be searched.
    """
    seen: set[tuple[int, int]] = set()
    for top in tops:
        for directory, below, files in os.walk(top, onerror=_raise, followlinks=True):
            status = os.stat(directory)
            identity = (status.st_dev, status.st_ino)
            below[:] = [] if identity in seen else sorted(name for name in below if not name.startswith("."))
            if identity not in seen:
                seen.add(identity)
                yield directory, below, [name for name in files if not name.startswith(".")]


def matches(pattern: str) -> list[str]:
    """What a glob pattern matches, sorted; ``**`` is any number of directories, at its end the files in them.

    Raises:
        DataError: a directory that ``**`` stands for cannot be searched.
    """
    first, *rest = ANY_DEPTH.split(pattern)
    found = glob.glob(first) if first or not rest else [os.curdir]
    if rest and not rest[-1] and not pattern.endswith("/"):
        *rest, _ = rest
        searched = walk(_below(found, rest))
        return sorted(os.path.join(directory, name) for directory, _, names in searched for name in names)
    return sorted(_below(found, rest))


def _below(found: Iterable[str], patterns: Iterable[str]) -> Iterable[str]:
    """What each pattern in turn matches in all directories below what was found before."""
    for pattern in patterns:
        directories = [directory for directory, _, _ in walk(found)]
        inside = [(directory, name) for directory in directories for name in glob.glob(pattern, root_dir=directory)]
        found = [os.path.join(*pair) for pair in inside] if pattern else directories
    return found


def _raise(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be searched: {error.strerror}")
