"""Whether the data of a run and its tokenizer speak of the same ids."""

import hashlib
from pathlib import Path

from meshwright.config.schema import DatasetConfig
from meshwright.data.errors import DataError
from meshwright.data.indexed_format import strip_suffix
from meshwright.data.record import load_record, tokenizer_path
from meshwright.data.vocabulary.tokenizer import tokenizer_file


def check_vocabularies(dataset: DatasetConfig) -> None:
    """Refuse corpora of different tokenizers, and a ``dataset.tokenizer`` that is not theirs.

    Corpora without record and tokenizer, as other programs write them, cannot be checked and are passed over.

    Raises:
        DataError: two of them differ, or a tokenizer is missing or cannot be read.
    """
    corpora = [strip_suffix(entry.path) for entry in (*dataset.paths, *dataset.eval_paths)]
    known = [(corpus, sha256) for corpus in corpora if (sha256 := _made_by(corpus)) is not None]
    for corpus, sha256 in known[1:]:
        if sha256 != known[0][1]:
            raise _different(known[0][0], corpus)
    if dataset.tokenizer is not None:
        _check_tokenizer(Path(dataset.tokenizer), *(known[0] if known else (None, None)))


def _made_by(corpus: Path) -> str | None:
    """sha256 of the tokenizer of a corpus: as recorded, or of the file that ``data import`` put beside it."""
    if record := load_record(corpus):
        return record.tokenizer_sha256
    beside = tokenizer_path(corpus)
    return _sha256(beside) if beside.is_file() else None


def _check_tokenizer(path: Path, corpus: Path | None, sha256: str | None) -> None:
    instead = f"; the one of {corpus} is {tokenizer_path(corpus)}" if corpus else ""
    try:
        found = tokenizer_file(path)
    except DataError as error:
        raise DataError(f"dataset.tokenizer: {error}{instead}") from None
    if corpus and _sha256(found) != sha256:
        raise DataError(
            f"dataset.tokenizer: {found} is not what {corpus} was made with, so its ids would be other text; name"
            f" {tokenizer_path(corpus)}, or prepare the data anew with --tokenizer {path}"
        )


def _different(first: Path, other: Path) -> DataError:
    return DataError(
        f"dataset: {first} and {other} were made with different tokenizers, {tokenizer_path(first)} and"
        f" {tokenizer_path(other)}: the same id is other text in each; prepare {other} anew with --tokenizer"
        f" {tokenizer_path(first)}"
    )


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
