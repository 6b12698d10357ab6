"""Tokens of text that is not tokenized, estimated from a sample of it."""

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.data.clean.c4 import CITATION

PIECE_CHARACTERS = 1024
LONGEST_LINE = 4 * PIECE_CHARACTERS
MOST_PIECES = 1024
"""Of one kind of text in all shards together; one from each where there are more shards."""
BATCH_PIECES = 1000
EDITED_AWAY = "edited_away"


class Sample:
    """Pieces of texts, each as likely to be among them as any other. Memory: the pieces."""

    def __init__(self, seed: str, pieces: int) -> None:
        self._random = random.Random(seed)
        self._most = pieces
        self._number = self._characters = 0
        self._pieces: list[tuple[float, int, str, str]] = []

    def add(self, piece: str, left: str = "") -> None:
        """Maybe keep a piece, in the place of another; ``left`` is what is left of it."""
        self._characters += len(piece) - len(left)
        lot = self._random.random()
        self._number += 1
        if len(self._pieces) < self._most:
            heapq.heappush(self._pieces, (lot, self._number, piece, left))
        elif lot > self._pieces[0][0]:
            heapq.heapreplace(self._pieces, (lot, self._number, piece, left))

    def as_json(self) -> dict[str, Any]:
        """``characters`` taken away in all pieces, and the ``pieces`` kept with what is ``left`` of each."""
        ordered = sorted(self._pieces, key=lambda item: item[1])
        pieces, left = [piece for _, _, piece, _ in ordered], [left for _, _, _, left in ordered]
        return {"characters": self._characters, "pieces": pieces, "left": left if any(left) else []}


class Samples:
    """Samples of what is taken away from one shard of ``shards``: by each rule, and ``EDITED_AWAY``."""

    def __init__(self, shard: int, shards: int) -> None:
        self._shard, self._most = shard, max(MOST_PIECES // shards, 1)
        self._samples: dict[str, Sample] = {}

    def drop(self, rule: str, text: str) -> None:
        """Add a document that a rule dropped."""
        sample = self._of(rule)
        for start in range(0, len(text), PIECE_CHARACTERS):
            sample.add(text[start : start + PIECE_CHARACTERS])

    def edit(self, before: str, after: str) -> None:
        """Add a document that was edited."""
        sample = self._of(EDITED_AWAY)
        for piece, left in edited_pieces(before, after):
            sample.add(piece, left)

    def _of(self, kind: str) -> Sample:
        if kind not in self._samples:
            self._samples[kind] = Sample(f"{self._shard} {kind}", self._most)
        return self._samples[kind]

    def as_json(self) -> dict[str, Any]:
        """Samples by kind."""
        return {kind: sample.as_json() for kind, sample in self._samples.items()}


def edited_pieces(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Some lines of a text at a time, and those of them that are left of it. Very long lines are passed over."""
    lines_left = set(after.splitlines())
    piece = left = ""
    for line in before.splitlines(keepends=True):
        if len(line) > LONGEST_LINE:
            continue
        piece += line
        form = line.strip()
        if form not in lines_left and "[" in form:
            form = CITATION.sub("", form)
        if form in lines_left:
            left += f"{form}\n"
        if len(piece) >= PIECE_CHARACTERS:
            yield piece, left
            piece = left = ""
    if piece:
        yield piece, left.removesuffix("\n")


@dataclass(frozen=True)
class Estimate:
    """Tokens in ``characters`` characters, from a count in ``sampled`` of them."""

    tokens: float = 0.0
    characters: int = 0
    sampled: int = 0

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.tokens + other.tokens, self.characters + other.characters, self.sampled + other.sampled)


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
            pieces, left, characters = sample["pieces"], sample["left"], sample["characters"]
            sampled = sum(map(len, pieces)) - sum(map(len, left))
            tokens = _count(pieces, encode) - _count(left, encode)
            found = Estimate(tokens * characters / max(sampled, 1), characters, sampled)
            estimates[kind] = estimates.get(kind, Estimate()) + found
    return estimates


def _count(texts: list[str], encode: Callable[[list[str]], Sequence[Sequence[int]]]) -> int:
    batches = (texts[start : start + BATCH_PIECES] for start in range(0, len(texts), BATCH_PIECES))
    return sum(len(ids) for batch in batches for ids in encode(batch))
