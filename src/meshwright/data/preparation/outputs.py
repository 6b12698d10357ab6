"""What a request would write, and over what: told before the work."""

import os
from collections.abc import Sequence
from pathlib import Path

from meshwright.data.deduplicate.kept import ABOUT_SUFFIX, KEYS_SUFFIX
from meshwright.data.errors import DataError
from meshwright.data.preparation.finish_stage import OUTPUTS
from meshwright.data.preparation.request import Request
from meshwright.data.record import TOKENIZER_SUFFIXES
from meshwright.data.vocabulary.beside import folder_end
from meshwright.data.vocabulary.tokenizer import TextTokenizer, tokenizer_file


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
        # The longest name that the work needs: workplaces, too, have shorter ones.
        os.stat(max(output_files(prefix), key=lambda path: len(path.name)))
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
    own = _own_tokenizer(request)
    vocabulary = [tokenizer_file(Path(request.tokenizer))] if request.tokenizer and not own else []
    for path in (*files, *vocabulary, *before):
        if os.path.realpath(path) in written:
            raise DataError(f"{path}: is an input, and --output {request.prefix} would replace it; choose another one")


def check_end_stays(request: Request, tokenizer: TextTokenizer) -> None:
    """Refuse to end texts with what only files say that are to be replaced: killed meanwhile, it would be forgotten.

    Raises:
        DataError: the tokenizer is that of the corpus itself, and would end them with another token without its record.
    """
    file = _own_tokenizer(request)
    if file is None or request.eos_token is not None:
        return
    try:
        otherwise = TextTokenizer(tokenizer.body, folder_end(file)).eos_token
    except DataError:
        otherwise = None
    if otherwise != tokenizer.eos_token:
        raise DataError(
            f"{file}: that it ends texts with {tokenizer.eos_token!r} stands in files that this command replaces; say "
            f"it with --eos-token {tokenizer.eos_token!r}"
        )


def _own_tokenizer(request: Request) -> Path | None:
    """The tokenizer, where it is that of the corpus that is to be written anew."""
    if request.tokenizer is None:
        return None
    file = tokenizer_file(Path(request.tokenizer))
    own = [os.path.realpath(f"{request.prefix}{suffix}") for suffix in TOKENIZER_SUFFIXES]
    return file if os.path.realpath(file) in own else None
