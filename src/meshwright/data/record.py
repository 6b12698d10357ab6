"""PREFIX.json: what `data prepare` wrote, for people and for the checks before training."""

import json
import reprlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np

from meshwright.data.errors import DataError
from meshwright.data.indexed_format import NARROW, WIDE

FORMAT = "meshwright-corpus"
EVAL_SUFFIX = ".eval"
TOKENIZER_SUFFIXES = (".tokenizer.json", ".tokenizer.model")
WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "a string", tuple: "a list", dict: "an object"}
LEGAL: dict[Any, Any] = {int: int, float: (int, float), str: str, tuple: list, dict: dict}
"""How types of the record are called, and what they are in JSON."""


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Size of one split; ``utf8_bytes`` is the text without end-of-text tokens, for bits per byte."""

    documents: int = 0
    tokens: int = 0
    utf8_bytes: int = 0

    def __add__(self, other: Self) -> "SplitCounts":
        return SplitCounts(
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            utf8_bytes=self.utf8_bytes + other.utf8_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """Counts and identity of a prepared corpus.

    Attributes:
        vocab_size: ids are below this.
        eos_id / eos_token: the token that ends every document.
        tokenizer_sha256: of the bytes of PREFIX.tokenizer.json or .model.
        dropped: documents left out, by reason.
        invalid_utf8: kept documents in which bytes that are not UTF-8 became U+FFFD.
    """

    vocab_size: int
    dtype: str
    eos_id: int
    eos_token: str
    tokenizer_sha256: str
    eval_fraction: float
    train: SplitCounts
    eval: SplitCounts
    files: int
    dropped: dict[str, int]
    invalid_utf8: int
    inputs: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The content of PREFIX.json."""
        return {"format": FORMAT, "version": 1, **asdict(self)}

    def content(self) -> bytes:
        """The bytes of PREFIX.json."""
        return (json.dumps(self.as_json(), indent=2) + "\n").encode()


def record_path(prefix: Path) -> Path:
    """Where the record of a prefix lies; a held-out prefix shares that of its corpus."""
    return Path(f"{str(prefix).removesuffix(EVAL_SUFFIX)}.json")


def tokenizer_path(prefix: Path) -> Path:
    """Where the tokenizer of a prefix lies, of whichever kind; a held-out prefix shares that of its corpus."""
    candidates = [Path(f"{str(prefix).removesuffix(EVAL_SUFFIX)}{suffix}") for suffix in TOKENIZER_SUFFIXES]
    return next((path for path in candidates if path.exists()), candidates[0])


def load_record(prefix: Path) -> CorpusRecord | None:
    """The record beside a token file pair, or None where another program wrote the pair.

    Raises:
        DataError: the file says it is ours but cannot be read, or a key is missing, not known or of no legal value.
    """
    path = record_path(prefix)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        return None
    if (version := content.pop("version", None)) != 1:
        raise DataError(f"{path}: version {version}, only version 1 is known")
    for wrong in _misfits(CorpusRecord, content, ""):
        raise DataError(f"{path}: {wrong}")
    for name in ("train", "eval"):
        content[name] = SplitCounts(**content[name])
    record = CorpusRecord(**{**content, "inputs": tuple(content["inputs"])})
    _check_ids(path, record)
    return record


def _misfits(kind: Any, value: Any, key: str) -> Iterator[str]:
    """What keeps a value of JSON from being of a type of the record, each with its key."""
    shape = dict if is_dataclass(kind) else get_origin(kind) or kind
    if not isinstance(value, LEGAL[shape]) or isinstance(value, bool):
        yield f"{key}: must be {WORDS[shape]}, not {reprlib.repr(value)}"
    elif shape is dict:
        kinds = get_type_hints(kind) if is_dataclass(kind) else dict.fromkeys(value, get_args(kind)[1])
        for name in {**kinds, **value}:
            below = f"{key}.{name}" if key else name
            if name not in value:
                yield f"{below}: is missing"
            elif name not in kinds:
                yield f"{below}: no such key is known"
            else:
                yield from _misfits(kinds[name], value[name], below)
    elif shape is tuple:
        for number, item in enumerate(value):
            yield from _misfits(get_args(kind)[0], item, f"{key}.{number}")


def _check_ids(path: Path, record: CorpusRecord) -> None:
    written = {dtype.name: dtype for dtype in (NARROW, WIDE)}
    if record.dtype not in written:
        raise DataError(f"{path}: dtype: must be {' or '.join(written)}, not {reprlib.repr(record.dtype)}")
    largest = int(np.iinfo(written[record.dtype]).max) + 1
    if not 1 <= record.vocab_size <= largest:
        raise DataError(
            f"{path}: vocab_size: must be 1 to {largest} where ids are {record.dtype}, not {record.vocab_size}"
        )
    if not 0 <= record.eos_id < record.vocab_size:
        raise DataError(f"{path}: eos_id: {record.eos_id} is no id of a vocabulary of {record.vocab_size}")
