"""Tokenizing as a stage of preparation: the token ids of each shard, in the dtype of the corpus."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from meshwright.data.corpus import Tally
from meshwright.data.indexed_writer import check_documents
from meshwright.data.preparation.documents import Reader
from meshwright.data.preparation.encode import Encoded, Encoder, chunks
from meshwright.data.preparation.shards import Shard, complete_file, shard_path, write_json
from meshwright.data.record import EVAL_SUFFIX, SplitCounts

SPLITS = ("", EVAL_SUFFIX)
TOKEN_COUNTS = ".json"


def tokens_path(directory: Path, shard: Shard, split: str) -> Path:
    """Where the ids of one split of a shard are: nothing but ids, as in a .bin file."""
    return shard_path(directory, shard, f"{split}.bin")


def lengths_path(directory: Path, shard: Shard, split: str) -> Path:
    """Where the tokens in each document are: int32 [documents], nothing else."""
    return shard_path(directory, shard, f"{split}.lengths")


@dataclass(frozen=True)
class TokenCounts:
    """Sizes of the train and the held-out split, and what reading met, in a shard or in several."""

    splits: tuple[SplitCounts, SplitCounts] = (SplitCounts(), SplitCounts())
    tally: Tally = field(default_factory=Tally)

    def __add__(self, other: Self) -> "TokenCounts":
        train, held_out = (mine + theirs for mine, theirs in zip(self.splits, other.splits, strict=True))
        tally = Tally()
        for met in (self.tally, other.tally):
            tally.merge(met)
        return TokenCounts((train, held_out), tally)

    def save(self, directory: Path, shard: Shard) -> None:
        """Mark a shard as finished."""
        content = {"splits": [asdict(split) for split in self.splits], "tally": self.tally.as_json()}
        write_json(shard_path(directory, shard, TOKEN_COUNTS), content)

    @classmethod
    def load(cls, directory: Path, shard: Shard) -> Self:
        """Counts of a finished shard."""
        content = json.loads(shard_path(directory, shard, TOKEN_COUNTS).read_text("utf-8"))
        train, held_out = (SplitCounts(**counts) for counts in content["splits"])
        return cls((train, held_out), Tally.from_json(content["tally"]))


@dataclass(frozen=True)
class ShardTokenizer:
    """Tokenizes one shard: for each split the ids and the lengths, then the counts.

    Memory: a million characters of documents, or the longest document, and their ids.
    """

    reader: Reader
    encoder: Encoder
    vocab_size: int
    dtype: np.dtype
    directory: Path

    def __call__(self, shard: Shard) -> None:
        """Tokenize a shard.

        Raises:
            DataError: an input cannot be read, or an id is outside the vocabulary.
            OSError: a result cannot be written.
        """
        tally = Tally()
        texts = (source.text for source in self.reader(shard, tally))
        with contextlib.ExitStack() as stack:
            splits = [stack.enter_context(_split_files(self.directory, shard, split)) for split in SPLITS]
            for chunk in chunks(texts):
                for split, encoded in zip(splits, self.encoder(chunk), strict=True):
                    split.add(encoded, self.vocab_size, self.dtype)
        TokenCounts((splits[0].counts, splits[1].counts), tally).save(self.directory, shard)


@dataclass
class _SplitFiles:
    """The files of one split of a shard, while they are written."""

    path: Path
    tokens: BinaryIO
    lengths: BinaryIO
    counts: SplitCounts = field(default_factory=SplitCounts)

    def add(self, encoded: Encoded, vocab_size: int, dtype: np.dtype) -> None:
        check_documents(
            encoded.tokens,
            encoded.lengths,
            vocab_size,
            path=self.path,
            tokens_before=self.counts.tokens,
            documents_before=self.counts.documents,
        )
        self.tokens.write(encoded.tokens.astype(dtype, copy=False).data)
        self.lengths.write(encoded.lengths.astype("<i4", copy=False).data)
        self.counts += SplitCounts(
            documents=len(encoded.lengths), tokens=len(encoded.tokens), utf8_bytes=encoded.utf8_bytes
        )


@contextlib.contextmanager
def _split_files(directory: Path, shard: Shard, split: str) -> Iterator[_SplitFiles]:
    path = tokens_path(directory, shard, split)
    with complete_file(path) as tokens, complete_file(lengths_path(directory, shard, split)) as lengths:
        yield _SplitFiles(path, tokens, lengths)
