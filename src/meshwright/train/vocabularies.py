"""Whether the data of a run and its tokenizer speak of the same ids."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from meshwright.config.schema import DatasetConfig
from meshwright.data.errors import DataError
from meshwright.data.file_state import told_if_unreadable
from meshwright.data.indexed_format import strip_suffix
from meshwright.data.record import load_record, tokenizer_path
from meshwright.data.vocabulary.beside import recorded_end
from meshwright.data.vocabulary.tokenizer import load_tokenizer, tokenizer_file


def check_vocabularies(dataset: DatasetConfig) -> None:
    """Refuse corpora of different tokenizers, and a ``dataset.tokenizer`` that is not theirs or ends no text of theirs.

    Corpora without record and tokenizer, as other programs write them, cannot be checked and are passed over.

    Raises:
        DataError: two of them differ, or a tokenizer is missing, cannot be read or ends texts with another token.
    """
    corpora = [strip_suffix(entry.path) for entry in (*dataset.paths, *dataset.eval_paths)]
    known = [(corpus, sha256) for corpus in corpora if (sha256 := _made_by(corpus)) is not None]
    for corpus, sha256 in known[1:]:
        if sha256 != known[0][1]:
            raise _different(known[0][0], corpus)
    if dataset.tokenizer is not None:
        _check_tokenizer(Path(dataset.tokenizer), *(known[0] if known else (None, None)))
        _check_end(Path(dataset.tokenizer), corpora)


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


def _check_end(path: Path, corpora: Sequence[Path]) -> None:
    """Refuse a tokenizer that ends texts as none of the corpora does: what is generated would not end."""
    ends = {corpus: end for corpus in corpora if (end := recorded_end(tokenizer_path(corpus))) is not None}
    if not ends or path.resolve() in [tokenizer_path(corpus).resolve() for corpus in ends]:
        return
    corpus, end = next(iter(ends.items()))
    try:
        own = load_tokenizer(path).eos_token
    except DataError as error:
        raise DataError(f"dataset.tokenizer: {error}; the one of {corpus} is {tokenizer_path(corpus)}") from None
    if own not in ends.values():
        raise DataError(
            f"dataset.tokenizer: {path} ends a text with {own!r}, but {corpus} with {end!r}: what is generated would"
            f" not end; name {tokenizer_path(corpus)}, which has the same ids and ends texts so"
        )


def _different(first: Path, other: Path) -> DataError:
    return DataError(
        f"dataset: {first} and {other} were made with different tokenizers, {tokenizer_path(first)} and"
        f" {tokenizer_path(other)}: the same id is other text in each; prepare {other} anew with --tokenizer"
        f" {tokenizer_path(first)}"
    )


def _sha256(path: Path) -> str:
    with told_if_unreadable(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()
