"""What the files beside a vocabulary say of it: the token that ends a text, and tokens that transformers adds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError
from meshwright.data.record import TOKENIZER_SUFFIXES, load_record

CONFIG = "tokenizer_config.json"
# Of the same form, beside the tokenizer of an imported corpus, which has no record.
CONFIG_SUFFIX = f".{CONFIG}"


def recorded_end(vocabulary: Path) -> str | None:
    """The token that ends the texts of the corpus beside which the file lies, as prepared or as said at import.

    Raises:
        DataError: the file that says it cannot be read.
    """
    suffix = next((suffix for suffix in TOKENIZER_SUFFIXES if str(vocabulary).endswith(suffix)), None)
    if suffix is None:
        return None
    prefix = str(vocabulary).removesuffix(suffix)
    record = load_record(Path(prefix))
    return record.eos_token if record else _named_end(Path(f"{prefix}{CONFIG_SUFFIX}"))


def end_beside(vocabulary: Path) -> str | None:
    """The token that ends a text: as recorded of the corpus beside the file, else as tokenizer_config.json names it.

    Raises:
        DataError: the file that says it cannot be read.
    """
    return recorded_end(vocabulary) or folder_end(vocabulary)


def folder_end(vocabulary: Path) -> str | None:
    """The token that ends a text as tokenizer_config.json in the folder of the file names it.

    Raises:
        DataError: that cannot be read.
    """
    return _named_end(vocabulary.with_name(CONFIG))


def config_bytes(eos_token: str) -> bytes:
    """A tokenizer_config.json that names the token that ends a text."""
    return (json.dumps({"eos_token": eos_token}) + "\n").encode()


def tokens_beside(vocabulary: Path) -> Iterator[tuple[str, Path]]:
    """Tokens that transformers finds in a text even where the vocabulary lacks them, and the files that list them.

    Without special ones, which no text becomes. ``added_tokens.json`` says nothing where tokenizer_config.json has a
    list of its own (transformers, ``PreTrainedTokenizerBase._from_pretrained``).

    Raises:
        DataError: such a file cannot be read.
    """
    config, legacy = vocabulary.with_name(CONFIG), vocabulary.with_name("added_tokens.json")
    content = _read(config)
    if "added_tokens_decoder" in content:
        for number, token in _object(content["added_tokens_decoder"], config, "added_tokens_decoder").items():
            if not _object(token, config, f"added_tokens_decoder.{number}").get("special"):
                yield _spelling(token, config, f"added_tokens_decoder.{number}"), config
        return
    roles = _roles(content) | _roles(_read(vocabulary.with_name("special_tokens_map.json")))
    yield from ((token, legacy) for token in _read(legacy) if token not in roles)


def _named_end(config: Path) -> str | None:
    end = _read(config).get("eos_token")
    return None if end is None else _spelling(end, config, "eos_token")


def _roles(content: dict[str, Any]) -> set[str]:
    """Spellings of the special tokens that a file gives a role, one each or a list."""
    roles = [value for key, value in content.items() if key.endswith(("_token", "_tokens"))]
    tokens = [token for role in roles for token in (role if isinstance(role, list) else [role])]
    values = [value for token in tokens for value in (token.values() if isinstance(token, dict) else [token])]
    return {value for value in values if isinstance(value, str)}


def _spelling(token: Any, file: Path, key: str) -> str:
    spelling = token.get("content") if isinstance(token, dict) else token
    if not isinstance(spelling, str):
        legal = 'the text of a token, or {"content": text}'
        raise DataError(f"{file}: {key} is of type {type(token).__name__}; legal: {legal}")
    return spelling


def _object(value: Any, file: Path, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{file}: {what} is of type {type(value).__name__}, not a JSON object")
    return value


def _read(file: Path) -> dict[str, Any]:
    """The content of a file, empty where there is none."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not valid JSON: {error}") from None
    return _object(content, file, "its content")
