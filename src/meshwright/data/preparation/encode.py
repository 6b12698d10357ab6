"""Texts to token arrays: the part of preparation that runs in worker processes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.text import is_held_out
from meshwright.data.vocabulary.byte_level import Ids
from meshwright.data.vocabulary.tokenizer import TextTokenizer

CHUNK_CHARACTERS = 1 << 20
CHUNK_DOCUMENTS = 1024


@dataclass(frozen=True)
class Encoded:
    """Documents of one split: ids one after another, int32 [tokens]; tokens in each, int32 [documents]."""

    tokens: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    utf8_bytes: int


class Encoder:
    """Splits texts into train and held-out, tokenizes them, ends each document with end-of-text."""

    def __init__(self, tokenizer: TextTokenizer, eval_fraction: float) -> None:
        self._tokenizer = tokenizer
        self._eval_fraction = eval_fraction

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self._tokenizer, self._eval_fraction)

    def __call__(self, texts: list[str]) -> tuple[Encoded, Encoded]:
        """The train and the held-out documents among ``texts``, each in the given order."""
        rows: tuple[list[Ids], list[Ids]] = ([], [])
        utf8_bytes = [0, 0]
        for text, row in zip(texts, self._tokenizer.encode_arrays(texts), strict=True):
            utf8 = text.encode("utf-8")
            side = is_held_out(utf8, self._eval_fraction)
            rows[side].append(row)
            utf8_bytes[side] += len(utf8)
        return self._collect(rows[0], utf8_bytes[0]), self._collect(rows[1], utf8_bytes[1])

    def _collect(self, rows: list[Ids], utf8_bytes: int) -> Encoded:
        lengths = np.array([len(row) + 1 for row in rows], np.int32)
        tokens = np.full(int(lengths.sum()), self._tokenizer.eos_id, np.int32)
        at = 0
        for row in rows:
            tokens[at : at + len(row)] = row
            at += len(row) + 1
        return Encoded(tokens, lengths, utf8_bytes)


def chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    """Texts in lists of about a million characters."""
    chunk: list[str] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if characters >= CHUNK_CHARACTERS or len(chunk) >= CHUNK_DOCUMENTS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
