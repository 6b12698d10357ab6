"""Tokens of text that is not tokenized, estimated from a sample of it."""

import heapq
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PIECE_CHARACTERS = 1024
MOST_PIECES = 1024
"""Of one kind of text in all shards together; one more or less from each where there are more shards."""
BATCH_PIECES = 1000


class Sample:
    """Pieces of texts, each as likely to be among them as any other. Memory: the pieces."""

    def __init__(self, seed: str, pieces: int) -> None:
        self._random = random.Random(seed)
        self._most = pieces
        self._number = self._characters = 0
        self._pieces: list[tuple[float, int, str]] = []

    def add(self, text: str) -> None:
        """Cut a text into pieces and keep some of them in the place of others."""
        self._characters += len(text)
        for start in range(0, len(text), PIECE_CHARACTERS):
            lot = self._random.random()
            if len(self._pieces) == self._most and lot < self._pieces[0][0]:
                continue
            self._number += 1
            push = heapq.heappush if len(self._pieces) < self._most else heapq.heapreplace
            push(self._pieces, (lot, self._number, text[start : start + PIECE_CHARACTERS]))

    def as_json(self) -> dict[str, Any]:
        """``characters`` of all texts, and the ``pieces`` in text order."""
        ordered = sorted((number, piece) for _, number, piece in self._pieces)
        return {"characters": self._characters, "pieces": [piece for _, piece in ordered]}


class Samples:
    """A sample of each kind of text in one shard of ``shards``."""

    def __init__(self, shard: int, shards: int) -> None:
        self._shard, self._most = shard, max(MOST_PIECES // shards, 1)
        self._samples: dict[str, Sample] = {}

    def add(self, kind: str, text: str) -> None:
        """Add a text to the sample of its kind."""
        if kind not in self._samples:
            self._samples[kind] = Sample(f"{self._shard} {kind}", self._most)
        self._samples[kind].add(text)

    def as_json(self) -> dict[str, Any]:
        """Samples by kind."""
        return {kind: sample.as_json() for kind, sample in self._samples.items()}


@dataclass(frozen=True)
class Estimate:
    """Tokens in ``characters`` characters, from a count in ``sampled`` of them."""

    tokens: float = 0.0
    characters: int = 0
    sampled: int = 0

    def as_json(self) -> dict[str, Any]:
        """Whole tokens."""
        return {**asdict(self), "tokens": round(self.tokens)}


def estimate_tokens(
    shards: Iterable[Mapping[str, Any]], encode: Callable[[list[str]], Sequence[Sequence[int]]]
) -> dict[str, Estimate]:
    """Tokens of each kind of text: in each shard those of its sample, times the share of characters that is sampled.

    Args:
        shards: what ``Samples.as_json`` gave.
        encode: token ids of texts.
    """
    estimates: dict[str, Estimate] = {}
    for samples in shards:
        for kind, sample in samples.items():
            pieces, characters = sample["pieces"], sample["characters"]
            sampled = sum(map(len, pieces))
            tokens = sum(
                len(ids)
                for start in range(0, len(pieces), BATCH_PIECES)
                for ids in encode(pieces[start : start + BATCH_PIECES])
            )
            so_far = estimates.get(kind, Estimate())
            estimates[kind] = Estimate(
                so_far.tokens + tokens * characters / max(sampled, 1),
                so_far.characters + characters,
                so_far.sampled + sampled,
            )
    return estimates
