"""A sentencepiece model, BPE or unigram, by the package sentencepiece itself."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from meshwright.data.errors import DataError
from meshwright.data.vocabulary.byte_level import Ids
from meshwright.data.vocabulary.patterns import PIECE_CHARACTERS

SPACE = "\u2581"
KNOWN_WORDS = 1 << 18
LONGEST_KNOWN = 64

# A space at the very end belongs to the last word: by itself it is no word that the model could be given.
_WORD = re.compile(r" *[^ ]+(?: \Z)?| +")
_BORDER = re.compile(r"[^ ](?= .)", re.DOTALL)


class SentencePieceVocabulary:
    """Encodes and decodes as a sentencepiece model says, without begin and end tokens.

    Where no token of a BPE model reaches from one word into the next, and text is taken as it is, a text is encoded
    word by word, and words met before are not encoded again: the ids are the same.
    """

    suffix = ".model"

    def __init__(self, body: bytes, source: str) -> None:
        """Load from bytes; ``source`` names them in errors. Raises DataError: not a sentencepiece model."""
        try:
            import sentencepiece
        except ImportError:
            raise DataError("the package `sentencepiece` is not installed: pip install 'meshwright[train]'") from None
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(body)
            self.size: int = self._processor.get_piece_size()
            self._processor.id_to_piece(list(range(self.size)))
        except RuntimeError:
            raise DataError(
                f"{source}: neither a tokenizer.json, nor a sentencepiece model, nor a tiktoken rank file"
            ) from None
        except UnicodeDecodeError as error:
            raise DataError(f"{source}: a damaged sentencepiece model: the text of a piece: {error}") from None
        self._body = body
        self._known: dict[str, list[int]] = {}

    def id_of(self, token: str) -> int | None:
        """Id of a token, or None where there is none of that name."""
        number = int(self._processor.piece_to_id(token))
        return number if self._processor.id_to_piece(number) == token else None

    def has_symbol(self, token: str) -> bool:
        """Whether there is such a piece."""
        return self.id_of(token) is not None

    def special_tokens(self) -> list[str]:
        """Tokens that no text gives, one of which may end a document."""
        return [self._processor.id_to_piece(number) for number in range(self.size) if self._is_special(number)]

    def default_end(self) -> str | None:
        """The token that the model says ends a sentence."""
        end = self._processor.eos_id()
        return str(self._processor.id_to_piece(end)) if end >= 0 else None

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, int32 [tokens] each."""
        if not self._words_stand_alone:
            return [np.array(ids, np.int32) for ids in self.encode_plainly(texts)]
        return [self._by_words(text) for text in texts]

    def encode_plainly(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text by the library alone."""
        return [self._processor.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are shown, ids outside the vocabulary are passed over."""
        text = ""
        for special, group in groupby((number for number in ids if number < self.size), self._is_special):
            run = list(group)
            text += "".join(map(self._processor.id_to_piece, run)) if special else self._processor.decode(run)
        return text

    def _is_special(self, number: int) -> bool:
        return bool(self._processor.is_control(number))

    def _by_words(self, text: str) -> Ids:
        if not text:
            return np.empty(0, np.int32)
        # The model takes both for the same, and puts one before the text.
        text = " " + text.replace(SPACE, " ")
        return np.concatenate([np.array(self._ids_of(piece), np.int32) for piece in _pieces(text)])

    def _ids_of(self, piece: str) -> list[int]:
        ids: list[int] = []
        known = self._known
        for word in _WORD.findall(piece):
            found = known.get(word)
            ids += self._learn(word) if found is None else found
        return ids

    def _learn(self, word: str) -> list[int]:
        ids: list[int] = self._processor.encode(word[1:])
        if len(word) <= LONGEST_KNOWN:
            if len(self._known) >= KNOWN_WORDS:
                self._known.clear()
            self._known[word] = ids
        return ids

    @cached_property
    def _words_stand_alone(self) -> bool:
        """Whether the ids of a text are those of its words, each with the spaces before it."""
        try:
            from sentencepiece import sentencepiece_model_pb2
        except ImportError:
            return False
        messages: Any = sentencepiece_model_pb2
        model = messages.ModelProto.FromString(self._body)
        how, trainer = model.normalizer_spec, model.trainer_spec
        as_it_is = how.add_dummy_prefix and how.escape_whitespaces and not how.remove_extra_whitespaces
        as_it_is = as_it_is and not how.precompiled_charsmap and not trainer.treat_whitespace_as_suffix
        pieces = [piece.piece for piece in model.pieces]
        return bool(
            trainer.model_type == trainer.BPE
            and as_it_is
            and SPACE in pieces
            and not any(SPACE in piece.lstrip(SPACE) for piece in pieces)
            and not any(map(self._processor.is_unused, range(self.size)))
        )


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces of about ``PIECE_CHARACTERS`` that begin with a space, cut after words."""
    at = 0
    while end := _BORDER.search(text, at + PIECE_CHARACTERS):
        yield text[at : end.start() + 1]
        at = end.start() + 1
    yield text[at:]
