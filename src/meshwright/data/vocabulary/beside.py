"""What the files beside a vocabulary say of it: the token that ends a text."""

import json
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError
from meshwright.data.record import TOKENIZER_SUFFIXES, load_record

CONFIG = "tokenizer_config.json"


def recorded_end(vocabulary: Path) -> str | None:
    """The token that ends the texts of the corpus beside which the file lies.

    Raises:
        DataError: its record cannot be read.
    """
    suffix = next((suffix for suffix in TOKENIZER_SUFFIXES if str(vocabulary).endswith(suffix)), None)
    if suffix is None:
        return None
    record = load_record(Path(str(vocabulary).removesuffix(suffix)))
    return record.eos_token if record else None


def end_beside(vocabulary: Path) -> str | None:
    """The token that ends a text: as recorded of the corpus beside the file, else as tokenizer_config.json names it.

    Raises:
        DataError: the file that says it cannot be read.
    """
    return recorded_end(vocabulary) or _named_end(vocabulary.with_name(CONFIG))


def _named_end(config: Path) -> str | None:
    end = _read(config).get("eos_token")
    return None if end is None else _spelling(end, config, "eos_token")


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
