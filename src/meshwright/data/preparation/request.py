"""What a corpus is to be made of, and how."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.data.clean.cleaner import NO_CLEANING, Cleaning
from meshwright.data.deduplicate.kept import kept_keys
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.errors import DataError
from meshwright.data.indexed_format import strip_suffix
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
            DataError: with the reason.
        """
        if (self.tokenizer is None) == (self.train_vocab_size is None):
            raise DataError("give either --tokenizer FILE or --train-tokenizer VOCAB_SIZE")
        if self.tokenizer is None and self.tiktoken_encoding is not None:
            raise DataError("--tiktoken says how the rank file of --tokenizer is used, which is not given")
        if self.train_vocab_size is not None:
            check_vocab_size(self.train_vocab_size)
        if not 0 <= self.eval_fraction < 1:
            raise DataError(f"eval_fraction {self.eval_fraction} must be at least 0 and below 1")
        if self.prefix.is_dir():
            raise DataError(f"{self.prefix}: is a directory; give a prefix, such as {self.prefix / 'corpus'}")
        if self.cleaning:
            self.cleaning.cleaner()
        self.deduplication.check()
        if self.against and not self.deduplication:
            raise DataError("--against needs --deduplicate")
        for prefix in self.corpora_before:
            kept_keys(prefix, self.deduplication)
