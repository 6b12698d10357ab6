"""Vocabularies of any kind: load one with the token that ends a document, or train a byte-level BPE."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from meshwright.data.errors import DataError
from meshwright.data.text import REPLACEMENT
from meshwright.data.vocabulary import rank_file
from meshwright.data.vocabulary.beside import end_beside, tokens_beside
from meshwright.data.vocabulary.byte_level import Ids
from meshwright.data.vocabulary.json_file import JsonVocabulary, import_tokenizers
from meshwright.data.vocabulary.sentencepiece_file import SentencePieceVocabulary

EOS_TOKEN = "<|endoftext|>"
SMALLEST_VOCAB = 256 + 1
# The trainer reserves memory for every id before it reads a text, and ends the process where there is too little.
LARGEST_TRAINED_VOCAB = 1 << 24
FILES = ("tokenizer.json", "tokenizer.model")
# A cuneiform sign and one of private use.
UNKNOWN_TEXT = "\U00012345\U0010fffd"
# A token may be found at the start of a text only, or of a line, or not beside letters.
AROUND = ("{}", "x{}y", " {} ", "\n{}\n")


class TextTokenizer:
    """A vocabulary and the token that ends a document.

    Text is encoded as text: no template adds tokens, nothing is cut off or padded, and the spelling of a
    special token inside a document (``<|endoftext|>`` in a file about tokenizers) is ordinary text.

    Attributes:
        body: the bytes of the tokenizer.json or of the sentencepiece model.
        suffix: how the name of a file of these bytes ends: .json or .model.
        vocab_size: every id is below this.
        eos_id / eos_token: ends each document.
    """

    def __init__(self, body: bytes, eos_token: str | None = None, *, source: str = "tokenizer") -> None:
        """Load from bytes.

        Args:
            eos_token: ends each document; default: the one that the bytes name, else a usual one.
            source: where the bytes are from, for errors.

        Raises:
            DataError: of no known kind, without ``eos_token``, or text that spells it or is unknown would become it.
        """
        is_json = body.lstrip()[:1] == b"{" or source.endswith(".json")
        self._vocabulary = JsonVocabulary(body, source) if is_json else SentencePieceVocabulary(body, source)
        self.body = body
        self.suffix = self._vocabulary.suffix
        self.vocab_size = self._vocabulary.size
        self.eos_token = eos_token or self._default_end(source)
        eos_id = self._vocabulary.id_of(self.eos_token)
        if eos_id is None:
            raise DataError(f"{source}: has no token {self.eos_token!r} (--eos-token)")
        self.eos_id = eos_id
        if what := self._text_that_ends():
            raise DataError(f"{source}: {what}, which would end the document there; name another one with --eos-token")

    def __reduce__(self) -> tuple[Any, ...]:
        return TextTokenizer, (self.body, self.eos_token)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without end-of-text tokens."""
        return self._vocabulary.encode_plainly(texts)

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, int32 [tokens] each, without end-of-text tokens: the same, fast for many texts."""
        return self._vocabulary.encode(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are shown."""
        return self._vocabulary.decode(ids)

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Text that ``ids`` add to the text of ``before``: some vocabularies drop the space at the start of a text."""
        head, whole = self.decode(before), self.decode([*before, *ids])
        return whole[len(head) :] if whole.startswith(head) else self.decode(ids)

    def finds(self, token: str) -> bool:
        """Whether the vocabulary has the token as one that is looked for in texts, or as a special one."""
        return self._vocabulary.has_symbol(token)

    def fingerprint(self) -> str:
        """sha256 hex of ``body``."""
        return hashlib.sha256(self.body).hexdigest()

    def _text_that_ends(self) -> str | None:
        """What in a text becomes the end of a document, for people; None where nothing was found that does."""
        end, shown = self.eos_token, self.decode([self.eos_id])
        if REPLACEMENT in shown and end not in self._vocabulary.special_tokens():
            return f"a part of a character becomes the token {end!r}"
        texts = [around.format(spelling) for spelling in (shown, end) for around in AROUND]
        unknown, *given = (self.eos_id in ids for ids in self.encode([UNKNOWN_TEXT, *texts]))
        if unknown:
            return f"what is unknown in a text becomes the token {end!r}"
        found = next((text for text, ends in zip(texts, given, strict=True) if ends), None)
        if found is None:
            return None
        return f"{found!r} in a text becomes the token {'itself' if found == end else repr(end)}"

    def _default_end(self, source: str) -> str:
        if end := self._vocabulary.default_end():
            return end
        special = self._vocabulary.special_tokens()
        known = f"; its special tokens: {', '.join(special[:10])}" if special else ""
        raise DataError(f"{source}: which token ends a document? name it with --eos-token{known}")


def load_tokenizer(
    path: str | Path, *, eos_token: str | None = None, tiktoken_encoding: str | None = None
) -> TextTokenizer:
    """Load a tokenizer.json, a sentencepiece model or a tiktoken rank file, or the first such in a directory.

    Args:
        eos_token: ends each document; default: that of the corpus where the file lies beside one, prepared or
            imported, else the one that tokenizer_config.json or the file names, else a usual one.
        tiktoken_encoding: for a rank file, and only there: how text is cut into words, and which special tokens
            there are (a name in ``patterns.ENCODINGS``). The rank file is converted into a tokenizer.json.

    Raises:
        DataError: missing, of no known kind, without an end-of-text token, or files beside it are damaged or list
            tokens that it lacks.
    """
    file = tokenizer_file(Path(path))
    body = file.read_bytes()
    eos_token = eos_token or end_beside(file)
    if rank_file.is_rank_file(body):
        body = rank_file.convert(body, tiktoken_encoding, str(file))
    elif tiktoken_encoding is not None:
        raise DataError(f"{file}: --tiktoken is for tiktoken rank files, which this is not")
    tokenizer = TextTokenizer(body, eos_token, source=str(file))
    if file.name in FILES:
        _check_tokens_beside(file, tokenizer)
    return tokenizer


def _check_tokens_beside(file: Path, tokenizer: TextTokenizer) -> None:
    for token, source in tokens_beside(file):
        if not tokenizer.finds(token):
            raise DataError(
                f"{source}: lists the token {token!r}, which {file.name} does not find in a text, but transformers "
                "does: the ids would be others; save the folder anew with "
                "`AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
            )


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> TextTokenizer:
    """Train a byte-level BPE (GPT-2 style) with ``<|endoftext|>`` as id 0.

    A small corpus may not have enough pairs to merge: the result's ``vocab_size`` is then smaller.

    Raises:
        DataError: ``vocab_size`` does not hold the 256 bytes and ``<|endoftext|>``.
    """
    check_vocab_size(vocab_size)
    tokenizers = import_tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TextTokenizer(tokenizer.to_str(pretty=True).encode("utf-8"), EOS_TOKEN)


def check_vocab_size(vocab_size: int) -> None:
    """Refuse a vocabulary that cannot be trained.

    Raises:
        DataError: ``vocab_size`` does not hold the 256 bytes and ``<|endoftext|>``, or is beyond all memory.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise DataError(
            f"vocabulary of {vocab_size} is too small: 256 bytes and {EOS_TOKEN} need at least {SMALLEST_VOCAB}"
        )
    if vocab_size > LARGEST_TRAINED_VOCAB:
        raise DataError(
            f"vocabulary of {vocab_size} is too large: training reserves memory for every id, "
            f"so it goes to {LARGEST_TRAINED_VOCAB}"
        )


def tokenizer_file(path: Path) -> Path:
    """The vocabulary that a path names: the file itself, or the first that is in the directory.

    Raises:
        DataError: there is none.
    """
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        return path
    candidates = [path / name for name in FILES] + sorted(path.glob("*.tiktoken"))
    found = next((file for file in candidates if file.is_file()), None)
    if found is None:
        raise DataError(f"{path}: has no {', '.join(FILES)} or *.tiktoken")
    return found
