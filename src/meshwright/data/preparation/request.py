"""What a corpus is to be made of, and how."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.config.corpus_flags import named
from meshwright.data.clean.cleaner import NO_CLEANING, Cleaning
from meshwright.data.deduplicate.kept import kept_keys
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.errors import DataError
from meshwright.data.indexed_format import strip_suffix
from meshwright.data.record import EVAL_SUFFIX
from meshwright.data.vocabulary.patterns import ENCODINGS
from meshwright.data.vocabulary.tokenizer import check_vocab_size

if TYPE_CHECKING:
    from meshwright.config.corpus import CorpusConfig

NO_DEDUPLICATION = Deduplication()


@dataclass(frozen=True, kw_only=True)
class Request:
    """All that decides what bytes a corpus has.

    Attributes:
        inputs: files, directories, glob patterns (see ``corpus.find_files``).
        output: path prefix of the files to write.
        tokenizer: a vocabulary to use (see ``load_tokenizer``), or
        train_vocab_size: train a byte-level BPE of this size on the documents that are not held out.
        suffixes: files to take from directories.
        text_key: where the text is in a .jsonl row.
        tiktoken_encoding: how a tiktoken rank file is used.
        eos_token: ends each document; default: the tokenizer's own.
        eval_fraction: share of documents to hold out, chosen by a hash of their text.
        cleaning: which documents to drop, and what to change in the others; default: nothing.
        deduplication: which repeated documents to drop; default: none.
        against: prefixes of corpora prepared before with the same deduplication; what they have is dropped too.
        examples: documents to show in the report for each rule that drops some.
    """

    inputs: Sequence[str | Path]
    output: Path
    tokenizer: str | Path | None = None
    train_vocab_size: int | None = None
    suffixes: Sequence[str] = ()
    text_key: str = "text"
    tiktoken_encoding: str | None = None
    eos_token: str | None = None
    eval_fraction: float = 0.02
    cleaning: Cleaning = NO_CLEANING
    deduplication: Deduplication = NO_DEDUPLICATION
    against: Sequence[str | Path] = ()
    examples: int = 3

    @classmethod
    def of(cls, config: "CorpusConfig") -> "Request":
        """What a config file asks for."""
        clean, deduplicate = config.clean, config.deduplicate
        return cls(
            inputs=config.inputs,
            output=Path(config.output),
            tokenizer=config.tokenizer,
            train_vocab_size=config.train_tokenizer,
            suffixes=config.suffixes,
            text_key=config.text_key,
            tiktoken_encoding=config.tiktoken,
            eos_token=config.eos_token,
            eval_fraction=config.eval_fraction,
            cleaning=Cleaning(
                repair_unicode=clean.repair_unicode,
                languages=clean.languages,
                rule_sets=clean.rules,
                mask_pii=clean.mask_pii,
                thresholds=clean.thresholds,
            ),
            deduplication=Deduplication(**deduplicate.model_dump(exclude={"against"})),
            against=deduplicate.against,
            examples=config.examples,
        )

    @property
    def prefix(self) -> Path:
        """The output without .bin or .idx."""
        return strip_suffix(self.output)

    @property
    def corpora_before(self) -> list[Path]:
        """Prefixes of ``against`` without .bin or .idx."""
        return [strip_suffix(prefix) for prefix in self.against]

    def check(self) -> None:
        """Refuse what cannot be done, before anything is read.

        Raises:
            DataError: with every reason, a line each.
        """
        if wrong := [f"{key}: {message}" for key, message in self.mistakes()]:
            raise DataError(named("\n".join(wrong), flags=False))
        if self.cleaning:
            self.cleaning.cleaner()

    def mistakes(self, given: Collection[str] = ()) -> Iterator[tuple[str, str]]:
        """Key and message of all that is wrong with it; keys that a message names stand in braces.

        Args:
            given: keys whose values are no defaults, as far as that is known.
        """
        if wrong := list(self._name_mistakes()):
            yield from wrong
            return
        yield from self._tokenizer_mistakes()
        if not 0 <= self.eval_fraction < 1:
            yield "eval_fraction", f"{self.eval_fraction} must be at least 0 and below 1"
        if os.path.isdir(self.prefix):
            yield "output", f"{self.prefix}: is a directory; give a prefix, such as {self.prefix / 'corpus'}"
        elif str(self.prefix).endswith(EVAL_SUFFIX):
            yield (
                "output",
                f"{self.prefix}: ends in {EVAL_SUFFIX}, as held-out files do; choose another name",
            )
        yield from self.cleaning.mistakes()
        yield from self._deduplication_mistakes(given)
        if not (self.cleaning or self.deduplication) and "examples" in given:
            yield "examples", "has no use where nothing is cleaned or deduplicated"

    def _name_mistakes(self) -> Iterator[tuple[str, str]]:
        names = {"inputs": self.inputs, "output": [self.output], "tokenizer": [self.tokenizer]}
        for key, paths in {**names, "deduplicate.against": self.against}.items():
            for path in paths:
                if "\0" in str(path):
                    yield key, f"{str(path)!r}: has a NUL, which no name of a file can have"

    def _tokenizer_mistakes(self) -> Iterator[tuple[str, str]]:
        if (self.tokenizer is None) == (self.train_vocab_size is None):
            yield "tokenizer", "give either {tokenizer} or {train_tokenizer}"
        elif self.train_vocab_size is not None:
            for key, value in (("tiktoken", self.tiktoken_encoding), ("eos_token", self.eos_token)):
                if value is not None:
                    yield key, "has no use without {tokenizer}"
            try:
                check_vocab_size(self.train_vocab_size)
            except DataError as error:
                yield "train_tokenizer", str(error)
        elif self.tiktoken_encoding not in (None, *ENCODINGS):
            yield "tiktoken", f"{self.tiktoken_encoding!r} is not known; known are {', '.join(ENCODINGS)}"

    def _deduplication_mistakes(self, given: Collection[str]) -> Iterator[tuple[str, str]]:
        settings = self.deduplication
        for name in ("ngram", "bands", "rows"):
            changed = getattr(settings, name) != getattr(NO_DEDUPLICATION, name)
            if not settings.near and (changed or f"deduplicate.{name}" in given):
                yield f"deduplicate.{name}", "has no use without {deduplicate.near}"
        for name, message in settings.mistakes():
            yield f"deduplicate.{name}", message
        if self.against and not settings:
            yield "deduplicate.against", "has no use without {deduplicate.exact} or {deduplicate.near}"
            return
        for prefix in self.corpora_before:
            if os.path.realpath(prefix) == os.path.realpath(self.prefix):
                yield "deduplicate.against", f"{prefix}: is the corpus that is to be written"
            elif os.path.isfile(prefix):
                yield (
                    "deduplicate.against",
                    f"{prefix}: is a file, not a corpus; put inputs before {{deduplicate.against}}",
                )
            else:
                try:
                    kept_keys(prefix, settings)
                except DataError as error:
                    yield "deduplicate.against", str(error)
