"""The documents that one stage of preparation hands to the next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from meshwright.data.clean.rows import TEXT_KEY, read_rows
from meshwright.data.corpus import Part, Source, Tally, read_parts
from meshwright.data.errors import DataError
from meshwright.data.preparation.shards import Shard, shard_path

DROP_SUFFIX = ".drop.npy"


@dataclass(frozen=True)
class Reader:
    """Reads the documents of shards.

    Attributes:
        text_key: where the text is in a .jsonl row of the inputs.
        drops: directory with a NUMBER.drop.npy for each shard, bool [documents], true where one is left out; None
            leaves none out.
        cleaned: whether cleaning wrote the shards (see ``clean.rows``).
    """

    text_key: str
    drops: Path | None = None
    cleaned: bool = False

    def __call__(self, shard: Shard, tally: Tally) -> Iterator[Source]:
        """Documents that are not left out, in order, and counted in ``tally``.

        Raises:
            DataError: an input cannot be read, or has changed since it was looked through for duplicates.
            OSError: what cleaning wrote cannot be read.
        """
        sources = self._cleaned(shard, tally) if self.cleaned else read_shard(shard, self.text_key, tally)
        return sources if self.drops is None else _kept(sources, tally, shard_path(self.drops, shard, DROP_SUFFIX))

    def _cleaned(self, shard: Shard, tally: Tally) -> Iterator[Source]:
        for part in shard.parts:
            yield from read_rows(part.path, tally)


def read_shard(shard: Shard, text_key: str, tally: Tally) -> Iterator[Source]:
    """Documents of a shard of the inputs, as ``read_parts`` gives them.

    Raises:
        DataError: an input cannot be read, or, told at the end, has changed since the shard was planned.
    """
    yield from read_parts(shard.parts, text_key=text_key, tally=tally)
    shard.check_unchanged()


def _kept(sources: Iterator[Source], tally: Tally, path: Path) -> Iterator[Source]:
    drop = np.load(path)
    number = -1
    for number, source in enumerate(sources):
        if number >= len(drop):
            break
        if drop[number]:
            tally.documents -= 1
            tally.invalid_utf8 -= source.repaired
        else:
            yield source
    if number + 1 != len(drop):
        raise DataError(f"{path}: is about {len(drop)} documents, but there are others: an input has changed meanwhile")


@dataclass(frozen=True)
class Documents:
    """Documents by shards, and how to read them."""

    shards: Sequence[Shard]
    reader: Reader

    def without(self, drops: Path) -> "Documents":
        """These without the ones that a directory of masks leaves out (see ``Reader``)."""
        return replace(self, reader=replace(self.reader, drops=drops))

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(shard.size for shard in self.shards)


def rewritten(shards: Sequence[Shard], paths: Sequence[Path]) -> Documents:
    """The documents of cleaning, which wrote a file of rows for each shard."""
    new = [Shard(shard.number, (Part(path),), path.stat().st_size) for shard, path in zip(shards, paths, strict=True)]
    return Documents(new, Reader(TEXT_KEY, cleaned=True))
