"""What a request would write, and over what: told before the work."""

import os
from collections.abc import Sequence
from pathlib import Path

from meshwright.data.deduplicate.kept import ABOUT_SUFFIX, KEYS_SUFFIX
from meshwright.data.errors import DataError
from meshwright.data.preparation.finish_stage import OUTPUTS
from meshwright.data.preparation.request import Request
from meshwright.data.preparation.workplace import workplace_path
from meshwright.data.record import TOKENIZER_SUFFIXES
from meshwright.data.vocabulary.tokenizer import tokenizer_file


def output_files(prefix: Path) -> list[Path]:
    """All files that a corpus may have."""
    return [Path(f"{prefix}{suffix}") for suffix in OUTPUTS]


def check_writable(prefix: Path) -> None:
    """Refuse a place where nothing can be written.

    Raises:
        DataError: with the reason.
    """
    folder = prefix.absolute().parent
    try:
        os.stat(workplace_path(prefix))
    except (FileNotFoundError, NotADirectoryError):
        while not os.path.lexists(folder):
            folder = folder.parent
    except OSError as error:
        raise DataError(f"--output {prefix}: cannot be written: {error.strerror}") from None
    if not folder.is_dir():
        raise DataError(f"--output {prefix}: cannot be written: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"--output {prefix}: cannot be written: permission denied in {folder}")


def check_inputs_stay(request: Request, files: Sequence[Path]) -> None:
    """Refuse to replace what the request reads, whoever asks for it.

    Args:
        files: the inputs.

    Raises:
        DataError: an output file is an input, the tokenizer, or belongs to a corpus to deduplicate against. The
            tokenizer of the corpus itself may be used again: the same bytes take its place, in one step.
    """
    written = {os.path.realpath(path) for path in output_files(request.prefix)}
    before = [Path(f"{prefix}{suffix}") for prefix in request.corpora_before for suffix in (KEYS_SUFFIX, ABOUT_SUFFIX)]
    own = {os.path.realpath(f"{request.prefix}{suffix}") for suffix in TOKENIZER_SUFFIXES}
    vocabulary = [tokenizer_file(Path(request.tokenizer))] if request.tokenizer else []
    vocabulary = [path for path in vocabulary if os.path.realpath(path) not in own]
    for path in (*files, *vocabulary, *before):
        if os.path.realpath(path) in written:
            raise DataError(f"{path}: is an input, and --output {request.prefix} would replace it; choose another one")
