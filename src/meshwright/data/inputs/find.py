"""Which files the inputs are: files, directories, saved datasets and patterns, in an order that never changes."""

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.data.errors import DataError
from meshwright.data.file_state import told_if_unreadable
from meshwright.data.inputs.part import shown
from meshwright.data.inputs.saved import saved_files
from meshwright.data.inputs.streams import COMPRESSED, compression_of
from meshwright.data.inputs.walk import matches, walk

DEFAULT_SUFFIXES = (".txt", ".jsonl", ".parquet")
# Uncompressed, .json is mostly not one object a line.
DEFAULT_PACKED = (".json.gz", ".json.zst")
LINES = (".jsonl", ".ndjson", ".jsonlines", ".json")
TABLES = (".parquet", ".arrow")
UNSUPPORTED = (".xz", ".bz2", ".zip", ".tar", ".tgz", ".bin", ".idx")
CORPUS = (".bin", ".idx")
TOKENS = ".mindrecord"
MOST_SUFFIXES = 5


def format_of(path: Path) -> str:
    """Suffix of a file without that of its compression, in lower case."""
    return (path.with_suffix("") if compression_of(path) else path).suffix.lower()


@dataclass(frozen=True)
class Found:
    """Files, and sentences for people on those that may not have been meant."""

    files: list[Path]
    notes: list[str]


def find_files(inputs: Sequence[str | Path], suffixes: Sequence[str] = ()) -> list[Path]:
    """The files of ``find_inputs``."""
    return find_inputs(inputs, suffixes).files


def find_inputs(inputs: Sequence[str | Path], suffixes: Sequence[str] = ()) -> Found:
    """Files named by ``inputs``: files, directories (searched through, in sorted order) and glob patterns.

    Directories yield files whose name ends in one of ``suffixes``, also with .gz or .zst after it (default: .txt,
    .jsonl, .parquet, .json.gz, .json.zst, also in capital letters), without those whose name or directory starts with
    a dot; links are followed, each directory is searched once, also by a pattern. A directory that Hugging Face
    datasets saved yields its data files. A file named itself, or by a pattern, is taken whatever its suffix. Each file
    comes once, by the first of its names, hard links among them.

    Raises:
        DataError: an input is missing, matches nothing, is not a regular file, or is of a format that is not read;
            or there are ``suffixes`` and no directory.
    """
    wanted = tuple(suffix if suffix.startswith(".") else f".{suffix}" for suffix in suffixes)
    paths = [path for item in inputs for path in _matches(str(item))]
    named = [path for path in paths if not path.is_dir()]
    if wanted and len(named) == len(paths):
        raise DataError(f"suffixes {', '.join(wanted)} (--suffix) have no use without a directory among the inputs")
    found: dict[tuple[int, ...], Path] = {}
    notes: list[str] = []
    for path in paths:
        inside = _in_directory(path, wanted) if path.is_dir() else Found([path], [])
        for file in inside.files:
            found.setdefault(_identity(file), file)
        notes += inside.notes
    notes += _read_as_text(named)
    return Found(list(found.values()), [shown(note) for note in notes])


def _matches(item: str) -> list[Path]:
    if os.path.lexists(item):
        return [Path(item)]
    if not glob.has_magic(item):
        raise DataError(f"{item}: no such file or directory")
    found = matches(item)
    if not found:
        raise DataError(f"{item}: the pattern matches nothing")
    return [Path(match) for match in found]


def _read_as_text(named: Sequence[Path]) -> Iterator[str]:
    """A shell, too, expands patterns to names of all kinds."""
    others = [path for path in named if format_of(path) not in (".txt", *LINES, *TABLES)]
    if others:
        yield f"read as plain text: {_counted(Counter(map(_ending, others)))}; the first is {others[0]}"


def _in_directory(directory: Path, suffixes: tuple[str, ...]) -> Found:
    plain = suffixes or DEFAULT_SUFFIXES
    packed = [f"{suffix}{end}" for suffix in plain for end in COMPRESSED]
    endings = (*plain, *packed, *(() if suffixes else DEFAULT_PACKED))
    others: Counter[str] = Counter()
    chosen = []
    for files, is_saved in _searched(directory):
        for path in files:
            if is_saved or (path.name if suffixes else path.name.lower()).endswith(endings):
                chosen.append(path)
            elif path.suffix.lower() not in CORPUS:
                others[_ending(path)] += 1
    if not chosen:
        known = _counted({suffix: count for suffix, count in others.items() if _can_be_taken(suffix)})
        hint = f"; it has {known}: choose with --suffix" if known else ""
        names = " or ".join(filter(None, [", ".join(plain[:-1]), plain[-1]]))
        raise DataError(f"{directory}: no file ends in {names}{hint}")
    # Who names suffixes knows of the others.
    return Found(sorted(chosen), [] if suffixes else list(_passed_over(directory, others)))


def _ending(path: Path) -> str:
    return "".join(path.suffixes[-2:]) if compression_of(path) else path.suffix


def _can_be_taken(suffix: str) -> bool:
    return bool(suffix) and suffix.lower() not in (*UNSUPPORTED, TOKENS)


def _passed_over(directory: Path, others: Mapping[str, int]) -> Iterator[str]:
    for words, taken in (("; --suffix takes them", True), (", which cannot be taken from a directory", False)):
        if some := _counted({suffix: count for suffix, count in others.items() if _can_be_taken(suffix) is taken}):
            yield f"{directory}: passed over {some}{words}"


def _counted(suffixes: Mapping[str, int]) -> str:
    """The most frequent ones with their numbers, those of the same number by name."""
    first = sorted(suffixes.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [f"{suffix or 'without suffix'} ({count})" for suffix, count in first[:MOST_SUFFIXES]]
    return ", ".join([*shown, *(["..."] if len(first) > len(shown) else [])])


def _searched(top: Path) -> Iterator[tuple[list[Path], bool]]:
    """Files of a directory and of those below it, and whether they are those of a saved dataset."""
    for name, below, files in walk([top]):
        directory = Path(name)
        saved = saved_files(directory)
        if saved is not None:
            below.clear()
        yield ([directory / file for file in files], False) if saved is None else (saved, True)


def _identity(path: Path) -> tuple[int, ...]:
    """What a file has in common with its other names.

    Raises:
        DataError: it is none that can be read.
    """
    with told_if_unreadable(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a regular file; inputs are read more than once, so write it to one")
    if path.suffix.lower() == TOKENS:
        raise DataError(f"{path}: holds token ids already: `meshwright data import` reads it")
    kind = format_of(path)
    if kind in UNSUPPORTED or (kind in TABLES and compression_of(path)):
        ending = f"{kind}{compression_of(path)}"
        raise DataError(f"{path}: {ending} files are not read; give text, .jsonl (also .gz, .zst), .parquet or .arrow")
    # File systems without numbers of their own may use one again.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
