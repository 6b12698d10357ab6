"""Clusters: documents joined by pairs, each cluster named by its first document."""

from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.data.deduplicate.rows import Int64s

PAIRS_AT_A_TIME = 1 << 22


class Clusters:
    """The first document of the cluster of each document.

    A union-find forest in an array, worked on by whole arrays of pairs: a parent always comes before its child, so the
    root is the first of its cluster, in whatever order pairs come. Takes 4 bytes per document, from 2^32 on 8.
    """

    def __init__(self, documents: int) -> None:
        self._parent: npt.NDArray[Any] = np.arange(documents, dtype=np.uint32 if documents < 1 << 32 else np.int64)

    def join(self, pairs: Int64s) -> None:
        """Join the clusters of both documents of each pair: int64 [2, pairs]."""
        for start in range(0, pairs.shape[1], PAIRS_AT_A_TIME):
            one, other = pairs[:, start : start + PAIRS_AT_A_TIME]
            while len(one):
                one, other = self.first(one), self.first(other)
                apart = one != other
                one, other = one[apart], other[apart]
                np.minimum.at(self._parent, np.maximum(one, other), np.minimum(one, other))

    def first(self, documents: Int64s) -> Int64s:
        """First document of the cluster of each of ``documents``, int64 [documents]."""
        found = self._parent[documents]
        while not np.array_equal(above := self._parent[found], found):
            found = above
        self._parent[documents] = found
        return found.astype(np.int64)
