"""A few tokens of a corpus as training reads them: text, document borders, and which tokens are supervised."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from meshwright.data.dataset import IGNORED, TokenDataset
from meshwright.data.indexed import IndexedDataset
from meshwright.data.order import Int64s
from meshwright.data.tokenizer import TextTokenizer

SAMPLE_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class SampleRun:
    """Neighbouring tokens of one document that are all in the loss, or all not.

    Attributes:
        first_token: its number in the file.
        supervised: whether training predicts these tokens.
        text: None without a tokenizer, or where it does not know an id.
    """

    document: int
    first_token: int
    supervised: bool
    ids: list[int]
    text: str | None


def sample_runs(prefix: Path, data: IndexedDataset, bounds: Int64s, tokenizer: TextTokenizer | None) -> list[SampleRun]:
    """The first tokens, and those on both sides of the first border between documents that have tokens."""
    positions = _positions(bounds)
    documents = np.searchsorted(bounds, positions, side="right") - 1
    supervised = _supervised(prefix, positions)
    breaks = (np.diff(positions) != 1) | (np.diff(documents) != 0) | (np.diff(supervised.astype(np.int8)) != 0)
    runs = []
    for part in np.split(np.arange(len(positions)), np.flatnonzero(breaks) + 1) if len(positions) else []:
        ids = data.tokens[positions[part]].tolist()
        runs.append(
            SampleRun(
                document=int(documents[part[0]]),
                first_token=int(positions[part[0]]),
                supervised=bool(supervised[part[0]]),
                ids=ids,
                text=token_text(tokenizer, ids),
            )
        )
    return runs


def token_text(tokenizer: TextTokenizer | None, ids: list[int]) -> str | None:
    """Text of ids, or None without a tokenizer or where it does not know one of them."""
    if tokenizer is None or not all(0 <= token < tokenizer.vocab_size for token in ids):
        return None
    return tokenizer.decode(ids)


def _positions(bounds: Int64s) -> Int64s:
    total = int(bounds[-1])
    inner = bounds[(bounds > 0) & (bounds < total)]
    border = int(inner[0]) if len(inner) else 0
    around = np.arange(max(0, border - SAMPLE_TOKENS), min(total, border + SAMPLE_TOKENS), dtype=np.int64)
    return np.union1d(np.arange(min(total, SAMPLE_TOKENS), dtype=np.int64), around)


def _supervised(prefix: Path, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Which tokens are labels when training reads the corpus, bool [positions]."""
    supervised = np.zeros(len(positions), np.bool_)
    later = positions > 0
    if later.any():
        window, offset = np.divmod(positions[later] - 1, SAMPLE_TOKENS)
        windows = np.unique(window)
        _, labels = TokenDataset([prefix], SAMPLE_TOKENS, pad_last=True).batch(windows)
        supervised[later] = labels[np.searchsorted(windows, window), offset] != IGNORED
    return supervised
