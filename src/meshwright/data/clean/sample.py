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

Encode = Callable[[list[str]], Sequence[Sequence[int]]]


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
        """``characters`` taken away in all pieces, their ``number``; ``pieces`` kept and what is ``left`` of each."""
        ordered = sorted(self._pieces, key=lambda item: item[1])
        pieces, left = [piece for _, _, piece, _ in ordered], [left for _, _, _, left in ordered]
        return {
            "characters": self._characters,
            "number": self._number,
            "pieces": pieces,
            "left": left if any(left) else [],
        }


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
            # Else the few pieces that each of many shards has may all be ones that nothing was taken from.
            if piece != left:
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
    whole = set(after.splitlines(keepends=True))
    forms = {line.strip("\r\n") for line in whole}
    piece = left = ""
    for line in before.splitlines(keepends=True):
        if len(line) > LONGEST_LINE:
            continue
        piece += line
        form = line.strip()
        if form not in forms and "[" in form:
            form = CITATION.sub("", form)
        if line in whole:
            left += line
        elif form in forms:
            left += f"{form}\n"
        if len(piece) >= PIECE_CHARACTERS:
            yield piece, left
            piece = left = ""
    if piece:
        yield piece, left if after.endswith("\n") else left.removesuffix("\n")


@dataclass(frozen=True)
class Estimate:
    """Tokens in ``characters`` characters, from a count in ``sampled`` of them."""

    tokens: float = 0.0
    characters: int = 0
    sampled: int = 0


def estimate_tokens(shards: Iterable[Mapping[str, Any]], encode: Encode) -> dict[str, Estimate]:
    """Tokens of each kind of text: its characters times the tokens per character of the samples of all shards.

    A sample counts as often as there are pieces for each one that it has. This is the combined ratio estimate (Cochran,
    Sampling Techniques, 3rd edition, section 6.11): a ratio for each shard would be wrong where each has few pieces.

    Args:
        shards: what ``Samples.as_json`` gave.
        encode: token ids of texts.
    """
    totals: dict[str, _Total] = {}
    for samples in shards:
        for kind, sample in samples.items():
            totals.setdefault(kind, _Total()).add(sample, encode)
    return {kind: total.estimate() for kind, total in totals.items()}


@dataclass
class _Total:
    """Sums over the samples of one kind."""

    weighted_tokens: float = 0.0
    weighted_characters: float = 0.0
    characters: int = 0
    sampled: int = 0

    def add(self, sample: Mapping[str, Any], encode: Encode) -> None:
        pieces, left = sample["pieces"], sample["left"]
        weight = sample["number"] / max(len(pieces), 1)
        sampled = sum(map(len, pieces)) - sum(map(len, left))
        self.weighted_tokens += weight * (_count(pieces, encode) - _count(left, encode))
        self.weighted_characters += weight * sampled
        self.characters += sample["characters"]
        self.sampled += sampled

    def estimate(self) -> Estimate:
        rate = self.weighted_tokens / max(self.weighted_characters, 1)
        return Estimate(rate * self.characters, self.characters, self.sampled)


def _count(texts: list[str], encode: Encode) -> int:
    batches = (texts[start : start + BATCH_PIECES] for start in range(0, len(texts), BATCH_PIECES))
    return sum(len(ids) for batch in batches for ids in encode(batch))
