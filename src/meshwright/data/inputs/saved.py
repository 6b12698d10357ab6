"""Directories that ``save_to_disk`` of Hugging Face datasets wrote."""

import json
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError

DATASET = ("dataset_info.json", "state.json")
SPLITS = "dataset_dict.json"


def saved_files(directory: Path) -> list[Path] | None:
    """The data files of a saved dataset; None where the directory is not one.

    Other .arrow files there are caches. Of a saved dict of datasets the only split is taken.

    Raises:
        DataError: there are several splits to choose from, a file is missing or broken, or rows were selected without
            being written.
    """
    if (directory / SPLITS).is_file():
        return _only_split(directory)
    if not all((directory / name).is_file() for name in DATASET):
        return None
    state = _content(directory / DATASET[1])
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(f"{directory}: its rows are a selection that is kept as indices; save it anew with datasets 2+")
    try:
        files = [directory / entry["filename"] for entry in state["_data_files"]]
    except (KeyError, TypeError):
        raise DataError(f"{directory / DATASET[1]}: has no list of data files under '_data_files'") from None
    for path in files:
        if not path.is_file():
            raise DataError(f"{path}: missing; {directory / DATASET[1]} lists it")
    return files


def _only_split(directory: Path) -> list[Path] | None:
    splits = _content(directory / SPLITS).get("splits")
    if not isinstance(splits, list) or not splits:
        raise DataError(f"{directory / SPLITS}: has no list of splits under 'splits'")
    if len(splits) > 1:
        which = ", ".join(str(directory / str(name)) for name in splits)
        raise DataError(f"{directory}: a dict of datasets; give one of {which}")
    only = directory / str(splits[0])
    found = saved_files(only)
    if found is None:
        raise DataError(f"{only}: not a saved dataset; {directory / SPLITS} lists it")
    return found


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: a JSON object is needed, found {type(content).__name__}")
    return content
