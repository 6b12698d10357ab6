"""PREFIX.json: what `data prepare` wrote, for people and for the checks before training."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from meshwright.data.errors import DataError

FORMAT = "meshwright-corpus"
EVAL_SUFFIX = ".eval"
TOKENIZER_SUFFIXES = (".tokenizer.json", ".tokenizer.model")


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
        DataError: the file says it is ours but cannot be read.
    """
    path = record_path(prefix)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        return None
    if (version := content.pop("version", None)) != 1:
        raise DataError(f"{path}: version {version}, only version 1 is known")
    try:
        for name in ("train", "eval"):
            content[name] = SplitCounts(**content[name])
        return CorpusRecord(**{**content, "inputs": tuple(content["inputs"])})
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not a complete corpus record: {error}") from None
