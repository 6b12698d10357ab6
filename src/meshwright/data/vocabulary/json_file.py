"""A tokenizer.json: any by the package tokenizers, most byte-level BPE by tiktoken (see ``byte_level``)."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.data.errors import DataError
from meshwright.data.vocabulary.byte_level import ByteLevelEncoder, Ids, read_byte_level
from meshwright.data.vocabulary.nasty import NASTY_TEXTS
from meshwright.data.vocabulary.patterns import pieces
from meshwright.data.vocabulary.special_pieces import LOOK_UP, hidden_names, hide

LARGEST_ID = 2**31 - 1
KNOWN_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")


class JsonVocabulary:
    """Encodes and decodes as a tokenizer.json says, without templates, truncation and padding."""

    suffix = ".json"

    def __init__(self, body: bytes, source: str) -> None:
        """Load from bytes; ``source`` names them in errors. Raises DataError: not a tokenizer.json."""
        self._decoder = _load(body, source)
        self._body = body
        self._ids: dict[str, int] = self._decoder.get_vocab(with_added_tokens=True)
        self.size = max(self._ids.values(), default=-1) + 1
        if self.size > LARGEST_ID + 1:
            raise DataError(f"{source}: has the id {self.size - 1}; ids are 32-bit, to {LARGEST_ID}")
        self._encoder = self._without_special_pieces(source)

    def id_of(self, token: str) -> int | None:
        """Id of a token, or None where there is none of that name."""
        return self._ids.get(token)

    def has_symbol(self, token: str) -> bool:
        """Whether the token is one of those that are looked for in a text, or special."""
        return token in self._added

    def special_tokens(self) -> list[str]:
        """Tokens with a meaning of their own, one of which may end a document."""
        return self._added

    def default_end(self) -> str | None:
        """The usual token that ends a document."""
        return next((token for token in KNOWN_ENDS if token in self._added), None)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, int32 [tokens] each."""
        rows = [self._certain(text) for text in texts]
        left = iter(self._by_tokenizers([text for text, row in zip(texts, rows, strict=True) if row is None]))
        return [next(left) if row is None else row for row in rows]

    def encode_plainly(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text by the package tokenizers alone."""
        return [encoding.ids for encoding in self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are shown."""
        return str(self._decoder.decode(list(ids), skip_special_tokens=False))

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._body)
        return content

    @cached_property
    def _added(self) -> list[str]:
        return [str(token["content"]) for token in self._content().get("added_tokens", [])]

    def _without_special_pieces(self, source: str) -> Any:
        """What encodes: no text gives a special token, also where the model has a piece of that spelling."""
        if type(self._decoder.model).__name__ not in LOOK_UP:
            return self._decoder
        content = self._content()
        names = hidden_names(content)
        if not names:
            return self._decoder
        encoder = _load(json.dumps(hide(content, names), ensure_ascii=False).encode(), source)
        ids = {names.get(token, token): number for token, number in self._ids.items()}
        if encoder.get_vocab(with_added_tokens=True) != ids:
            raise DataError(f"{source}: ids of special tokens depend on their spelling: {', '.join(list(names)[:10])}")
        return encoder

    def _certain(self, text: str) -> Ids | None:
        """Ids by way of tiktoken; None where it does not apply to the text as a whole."""
        fast = self._fast
        if fast is None or fast.has_literal(text):
            return None
        rows = []
        for piece in pieces(text):
            row = fast.encode(piece)
            rows.append(self._by_tokenizers([piece])[0] if row is None else row)
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _by_tokenizers(self, texts: list[str]) -> list[Ids]:
        return [np.array(ids, np.int32) for ids in self.encode_plainly(texts)]

    @cached_property
    def _fast(self) -> ByteLevelEncoder | None:
        vocabulary = read_byte_level(self._content())
        if vocabulary is None:
            return None
        try:
            encoder = ByteLevelEncoder(vocabulary)
        except ImportError:
            return None
        # The installed versions of both packages may class a character in their own ways.
        for text, expected in zip(NASTY_TEXTS, self._by_tokenizers(list(NASTY_TEXTS)), strict=True):
            found = None if encoder.has_literal(text) else encoder.encode(text)
            if found is not None and not np.array_equal(found, expected):
                return None
        return encoder


def _load(body: bytes, source: str) -> Any:
    tokenizers = import_tokenizers()
    try:
        tokenizer = tokenizers.Tokenizer.from_str(body.decode("utf-8"))
    except Exception as error:  # tokenizers raises plain Exception
        raise DataError(f"{source}: not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def import_tokenizers() -> Any:
    """The package tokenizers. Raises DataError where it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise DataError("the package `tokenizers` is not installed: pip install 'meshwright[train]'") from None
    return tokenizers
