"""Finding duplicates: from the keys of all documents to those to be dropped."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from meshwright.data.clean.report import EXAMPLE_CHARACTERS
from meshwright.data.clean.rows import origin
from meshwright.data.corpus import Tally
from meshwright.data.deduplicate.clusters import Clusters
from meshwright.data.deduplicate.compare import Comparer, pairs_path
from meshwright.data.deduplicate.kept import save_kept_keys
from meshwright.data.deduplicate.report import DuplicateCounts
from meshwright.data.deduplicate.rows import CHARACTERS, Bools, Int64s, document_count, open_rows
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.deduplicate.sign import keys_path
from meshwright.data.errors import DataError
from meshwright.data.file_state import FileState, check_unchanged
from meshwright.data.preparation.documents import DROP_SUFFIX, Reader
from meshwright.data.preparation.shards import Shard, complete_file, shard_path


def dropped(directory: Path, shard: Shard) -> Bools:
    """Which documents of a shard are to be dropped: bool [documents], in the order of ``read_parts``."""
    return cast("Bools", np.load(shard_path(directory, shard, DROP_SUFFIX)))


class Finder:
    """Finds the duplicates among the documents of signed shards, and those of corpora made before.

    First ``comparer`` is called with each of ``comparisons``, then ``drop`` once.
    """

    def __init__(
        self,
        settings: Deduplication,
        shards: Sequence[Shard],
        signatures: Path,
        directory: Path,
        against: Mapping[Path, FileState] | None = None,
    ) -> None:
        """Take stock.

        Args:
            settings: as the shards were signed.
            shards: all of them, in order.
            signatures: the directory of the signing stage.
            directory: the directory of the comparing stage.
            against: prefixes of corpora made before, and their keys as they were when the work began (``kept_keys``).
                None of their documents is dropped.

        Raises:
            DataError: a file of keys cannot be read.
        """
        self._settings, self._shards, self._directory = settings, shards, directory
        against = against or {}
        self._against, self._states = list(against), list(against.values())
        self._files = [Path(state.path) for state in self._states]
        self._files += [keys_path(signatures, shard) for shard in shards]
        self._starts: Int64s = np.cumsum([0, *map(document_count, self._files)])

    @cached_property
    def comparer(self) -> Comparer:
        """The function of the comparing stage."""
        return Comparer.of(self._settings, int(self._starts[-1]), self._directory)

    @cached_property
    def comparisons(self) -> list[Shard]:
        """The tasks of the comparing stage."""
        return self.comparer.comparisons(self._files, int(self._starts[-1]), self._states)

    def drop(self, reader: Reader, *, examples: int) -> None:
        """Write NUMBER.drop.npy of each shard and, last, the counts, after all comparisons are done.

        Args:
            reader: of the shards, for the examples.
            examples: how many of exact and of near duplicates to give, at most.

        Raises:
            DataError: a file cannot be read, or the keys of a corpus made before have changed.
            OSError: a result cannot be written.
        """
        # Documents are numbered by what was found when stock was taken, which may be after the comparing.
        check_unchanged(self._states)
        clusters, exact = self._clusters()
        counts, names = DuplicateCounts(), np.zeros(len(exact), np.bool_)
        shown: dict[str, list[tuple[int, int]]] = {"exact": [], "near": []}
        for file, shard in enumerate(self._shards, start=len(self._against)):
            documents = np.arange(self._starts[file], self._starts[file + 1])
            first, same = clusters.first(documents), exact[documents]
            drop = first != documents
            with complete_file(shard_path(self._directory, shard, DROP_SUFFIX)) as result:
                np.save(result, drop)
            names[first[drop]] = True
            before = first < self._starts[len(self._against)]
            counts.add(open_rows(self._files[file])[CHARACTERS], exact=same, near=drop & ~same, before=drop & before)
            for kind, ours in (("exact", same), ("near", drop & ~same)):
                places = np.flatnonzero(ours)[: examples - len(shown[kind])]
                shown[kind] += zip(documents[places].tolist(), first[places].tolist(), strict=True)
        counts.clusters = int(names.sum())
        counts.examples = self._examples(shown, reader)
        counts.save(self._directory)

    def save_keys(self, prefix: Path) -> None:
        """Write PREFIX.signatures.npy and .json, the keys of the documents that ``drop`` left.

        Raises:
            DataError: a file of keys cannot be read.
            OSError: a file cannot be written.
        """
        drops = [dropped(self._directory, shard) for shard in self._shards]
        save_kept_keys(prefix, self._settings, self._files[len(self._against) :], drops)

    def _clusters(self) -> tuple[Clusters, Bools]:
        """Clusters, and which documents have the text of an earlier one: bool [documents]."""
        clusters, exact = Clusters(int(self._starts[-1])), np.zeros(self._starts[-1], np.bool_)
        for comparison in self.comparisons:
            pairs = np.load(pairs_path(self._directory, comparison), mmap_mode="r")
            clusters.join(pairs)
            if self.comparer.is_exact(comparison):
                exact[pairs[1]] = True
        return clusters, exact

    def _examples(self, shown: dict[str, list[tuple[int, int]]], reader: Reader) -> list[dict[str, Any]]:
        wanted = sorted({document for pairs in shown.values() for pair in pairs for document in pair})
        places = dict(zip(wanted, self._places(wanted, reader), strict=True))
        return [
            {"kind": kind, **places[document], "repeats": places[first]}
            for kind, pairs in shown.items()
            for document, first in pairs
        ]

    def _places(self, documents: Sequence[int], reader: Reader) -> Iterator[dict[str, Any]]:
        """Where documents are, numbers ascending; each shard is read once."""
        in_file = zip(documents, np.searchsorted(self._starts, documents, side="right") - 1, strict=True)
        for file, group in itertools.groupby(in_file, key=lambda pair: int(pair[1])):
            numbers = [document - int(self._starts[file]) for document, _ in group]
            if file < len(self._against):
                yield from ({"corpus": str(self._against[file]), "document": number} for number in numbers)
            else:
                yield from _starts_of(self._shards[file - len(self._against)], numbers, reader)


def _starts_of(shard: Shard, numbers: Sequence[int], reader: Reader) -> Iterator[dict[str, Any]]:
    sources = reader(shard, Tally())
    at = 0
    for number in numbers:
        source = next(itertools.islice(sources, number - at, None), None)
        if source is None:
            raise DataError(f"{shard.parts[-1].path}: has fewer documents than when it was signed: it has changed")
        at = number + 1
        yield {**(origin(source) if reader.cleaned else source.place()), "text": source.text[:EXAMPLE_CHARACTERS]}
