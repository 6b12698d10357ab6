"""PREFIX.signatures.npy and .json: the keys of the documents of a finished corpus, to hold later ones against."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from meshwright.data.deduplicate.rows import Bools, open_rows, row_count
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.errors import DataError
from meshwright.data.file_state import FileState
from meshwright.data.preparation.shards import complete_file, write_json

KEYS_SUFFIX = ".signatures.npy"
ABOUT_SUFFIX = ".signatures.json"
FORMAT, VERSION = "meshwright-signatures", 1


def save_kept_keys(prefix: Path, settings: Deduplication, keys: Sequence[Path], dropped: Sequence[Bools]) -> None:
    """Write both files, in little memory.

    Args:
        prefix: of the corpus.
        settings: as the keys were made.
        keys: files of keys of all shards, in order.
        dropped: which documents of each shard to leave out, bool [documents].

    Raises:
        DataError: a file of keys cannot be read.
        OSError: a file cannot be written.
    """
    documents = sum(int((~drop).sum()) for drop in dropped)
    header = {"descr": "<u8", "fortran_order": False, "shape": (row_count(settings), documents)}
    with complete_file(Path(f"{prefix}{KEYS_SUFFIX}")) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for row in range(row_count(settings)):
            for path, drop in zip(keys, dropped, strict=True):
                file.write(open_rows(path)[row][~drop].tobytes())
    about = {"format": FORMAT, "version": VERSION, "documents": documents, "settings": asdict(settings)}
    write_json(Path(f"{prefix}{ABOUT_SUFFIX}"), about, indent=2)


def kept_keys(prefix: Path, settings: Deduplication) -> FileState:
    """The file of keys of a finished corpus, as it is now.

    Raises:
        DataError: it has none, or they were made with other settings.
    """
    about_path, keys_path = Path(f"{prefix}{ABOUT_SUFFIX}"), Path(f"{prefix}{KEYS_SUFFIX}")
    try:
        about = json.loads(about_path.read_bytes())
        if about.get("format") != FORMAT or about.get("version") != VERSION:
            raise ValueError(f"not {FORMAT} version {VERSION}")
        documents, theirs = int(about["documents"]), dict(about["settings"])
    except FileNotFoundError:
        raise DataError(f"{about_path}: no such file; signatures are kept when a corpus is deduplicated") from None
    except KeyError as error:
        raise DataError(f"{about_path}: cannot be read as signatures: it has no {error}") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{about_path}: cannot be read as signatures: {error}") from error
    ours = asdict(settings)
    if theirs != ours:
        different = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
        told = ", ".join(f"{name} {theirs.get(name)}, not {ours.get(name)}" for name in different)
        raise DataError(f"{about_path}: made with other settings: {told}")
    state = FileState.of(keys_path)
    if open_rows(keys_path).shape != (row_count(settings), documents):
        raise DataError(f"{keys_path}: does not belong to {about_path}")
    return state
