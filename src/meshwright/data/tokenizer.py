"""Byte-level BPE tokenizers: train one, or load any tokenizer.json."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError

EOS_TOKEN = "<|endoftext|>"
KNOWN_EOS = (EOS_TOKEN, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")
SMALLEST_VOCAB = 256 + 1


class TextTokenizer:
    """A tokenizer.json and the token that ends a document.

    Text is encoded as text: no template adds tokens, nothing is cut off or padded, and the spelling of a
    special token inside a document (``<|endoftext|>`` in a file about tokenizers) is ordinary text.

    Attributes:
        body: the bytes of the tokenizer.json.
        vocab_size: every id is below this.
        eos_id / eos_token: ends each document.
    """

    def __init__(self, body: bytes, eos_token: str, *, source: str = "tokenizer.json") -> None:
        """Load from bytes.

        Raises:
            DataError: not a tokenizer.json, or without ``eos_token``.
        """
        tokenizers = _tokenizers()
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(body.decode("utf-8"))
        except Exception as error:  # tokenizers raises plain Exception
            raise DataError(f"{source}: not a tokenizer.json: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if eos_token not in vocabulary:
            raise DataError(f"{source}: has no token {eos_token!r} (--eos-token)")
        self.body = body
        self.vocab_size = max(vocabulary.values()) + 1
        self.eos_token = eos_token
        self.eos_id: int = vocabulary[eos_token]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without end-of-text tokens."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are shown."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def fingerprint(self) -> str:
        """sha256 hex of the tokenizer.json."""
        return hashlib.sha256(self.body).hexdigest()


def load_tokenizer(path: str | Path, *, eos_token: str | None = None) -> TextTokenizer:
    """Load a tokenizer.json, or the one in a directory.

    Args:
        eos_token: ends each document; default: the one tokenizer_config.json names, else a usual one.

    Raises:
        DataError: missing, not a tokenizer.json, or without an end-of-text token.
    """
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    body = file.read_bytes()
    eos_token = eos_token or _configured_eos(file.with_name("tokenizer_config.json")) or _usual_eos(file, body)
    return TextTokenizer(body, eos_token, source=str(file))


def train_tokenizer(texts: Iterable[str], vocab_size: int, *, show_progress: bool = False) -> TextTokenizer:
    """Train a byte-level BPE (GPT-2 style) with ``<|endoftext|>`` as id 0.

    A small corpus may not have enough pairs to merge: the result's ``vocab_size`` is then smaller.

    Raises:
        DataError: ``vocab_size`` does not hold the 256 bytes and ``<|endoftext|>``.
    """
    check_vocab_size(vocab_size)
    tokenizers = _tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TextTokenizer(tokenizer.to_str(pretty=True).encode("utf-8"), EOS_TOKEN)


def check_vocab_size(vocab_size: int) -> None:
    """Refuse a vocabulary that cannot be trained.

    Raises:
        DataError: ``vocab_size`` does not hold the 256 bytes and ``<|endoftext|>``.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise DataError(
            f"vocabulary of {vocab_size} is too small: 256 bytes and {EOS_TOKEN} need at least {SMALLEST_VOCAB}"
        )


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise DataError("the package `tokenizers` is not installed: pip install 'meshwright[train]'") from None
    return tokenizers


def _configured_eos(config: Path) -> str | None:
    if not config.is_file():
        return None
    try:
        eos = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
    except (ValueError, AttributeError) as error:
        raise DataError(f"{config}: not a tokenizer_config.json: {error}") from None
    return eos.get("content") if isinstance(eos, dict) else eos


def _usual_eos(file: Path, body: bytes) -> str:
    try:
        content = json.loads(body)
        added = [str(token["content"]) for token in content.get("added_tokens", [])]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{file}: not a tokenizer.json: {error}") from None
    for token in KNOWN_EOS:
        if token in added:
            return token
    known = f"; its added tokens: {', '.join(added[:10])}" if added else ""
    raise DataError(f"{file}: which token ends a document? name it with --eos-token{known}")
