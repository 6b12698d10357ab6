"""A few tokens of a corpus as training reads them: text, document borders, and which tokens are supervised."""

from dataclasses import dataclass

import numpy as np

from meshwright.data.contents import CHUNK_TOKENS
from meshwright.data.dataset import TokenDataset
from meshwright.data.indexed import IndexedDataset
from meshwright.data.loss_mask import IGNORED, LossMask
from meshwright.data.order import Int64s
from meshwright.data.vocabulary.tokenizer import TextTokenizer

SAMPLE_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class SampleRun:
    """Neighbouring tokens of one document that are all in the loss, or all not, and all their own labels, or all not.

    Attributes:
        first_token: its number in the file.
        supervised: whether training predicts these tokens.
        text: None without a tokenizer, or where it does not know an id.
        labels: what training predicts in the places of these tokens, where it is other ids.
        labels_text: as ``text``.
    """

    document: int
    first_token: int
    supervised: bool
    ids: list[int]
    text: str | None
    labels: list[int] | None
    labels_text: str | None


def sample_runs(
    data: IndexedDataset, mask: LossMask | None, bounds: Int64s, tokenizer: TextTokenizer | None
) -> list[SampleRun]:
    """The first tokens, and those on both sides of the first border between documents that have tokens.

    With a loss mask also those on both sides of the first one that is supervised after one that is not.
    """
    positions = _positions(bounds, mask)
    documents = np.searchsorted(bounds, positions, side="right") - 1
    labels = _labels(data, mask, positions)
    supervised = labels != IGNORED
    own = supervised & (labels != data.tokens[positions])
    breaks = (np.diff(positions) != 1) | (np.diff(documents) != 0) | np.diff(supervised) | np.diff(own)
    runs = []
    for part in np.split(np.arange(len(positions)), np.flatnonzero(breaks) + 1) if len(positions) else []:
        ids, other = data.tokens[positions[part]].tolist(), labels[part].tolist() if own[part[0]] else None
        first, document = int(positions[part[0]]), int(documents[part[0]])
        before = data.tokens[max(first - 1, int(bounds[document])) : first].tolist()
        runs.append(
            SampleRun(
                document=document,
                first_token=first,
                supervised=bool(supervised[part[0]]),
                ids=ids,
                text=token_text(tokenizer, ids, before),
                labels=other,
                labels_text=token_text(tokenizer, other, before) if other else None,
            )
        )
    return runs


def token_text(tokenizer: TextTokenizer | None, ids: list[int], before: list[int] | None = None) -> str | None:
    """Text of ids that follow on ``before``, or None without a tokenizer or where it does not know one of them."""
    before = before or []
    if tokenizer is None or not all(0 <= token < tokenizer.vocab_size for token in (*before, *ids)):
        return None
    return tokenizer.decode_after(before, ids)


def _positions(bounds: Int64s, mask: LossMask | None) -> Int64s:
    total = int(bounds[-1])
    inner = bounds[(bounds > 0) & (bounds < total)]
    centres = [0, int(inner[0]) if len(inner) else 0, _first_answer(mask, total) if mask else 0]
    around = [np.arange(max(0, at - SAMPLE_TOKENS), min(total, at + SAMPLE_TOKENS), dtype=np.int64) for at in centres]
    return np.unique(np.concatenate(around))


def _first_answer(mask: LossMask, total: int) -> int:
    """The first supervised token after an unsupervised one; 0 where the first chunk of the corpus has none."""
    supervised = mask.read(0, min(total, CHUNK_TOKENS))
    places = np.flatnonzero(supervised[1:] & ~supervised[:-1])
    return int(places[0]) + 1 if len(places) else 0


def _labels(data: IndexedDataset, mask: LossMask | None, positions: Int64s) -> Int64s:
    """What is to be predicted in the places of tokens when training reads the corpus, or -100, int64 [positions]."""
    found = np.full(len(positions), IGNORED, np.int64)
    later = positions > 0
    # Training refuses a corpus without a label, and its first token is none.
    if later.any() and (mask is None or mask.supervised > mask.read(0, 1).sum()):
        window, offset = np.divmod(positions[later] - 1, SAMPLE_TOKENS)
        windows = np.unique(window)
        _, labels = TokenDataset([data.prefix], SAMPLE_TOKENS, pad_last=True).batch(windows)
        found[later] = labels[np.searchsorted(windows, window), offset]
    return found
