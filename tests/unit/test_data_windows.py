"""Samples of whole documents, against a plain count of what fits."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loss_mask import IGNORED


def write(prefix: Path, lengths: list[int], first: int = 0) -> Path:
    """A corpus in which token number = id."""
    ends = np.cumsum(lengths, dtype=int)
    with IndexedWriter(prefix, vocab_size=10_000) as writer:
        for start, end in zip(ends - lengths, ends, strict=True):
            writer.add_document(np.arange(start, end) + first)
    return prefix


def aligned(prefix: Path, lengths: list[int], seq_length: int) -> list[list[int]]:
    data = TokenDataset([write(prefix, lengths)], seq_length, align_documents=True)
    return [data[sample].tolist() for sample in range(len(data))]


def test_documents_are_cut_only_where_they_fit_into_no_sample(tmp_path: Path) -> None:
    assert aligned(tmp_path / "a", [5, 5, 2, 3, 4], 4) == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14],
        [15, 16, 17, 18],
    ]
    # Eleven tokens into samples of five: 0-4, 4-8, 8-10, where the next document follows.
    assert aligned(tmp_path / "b", [11, 2, 1, 4, 1, 5], 4) == [
        [0, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
        [8, 9, 10, 11, 12],
        [13, 14, 15, 16, 17],
        [19, 20, 21, 22, 23],
    ]


@pytest.mark.parametrize("seed", range(20))
def test_every_token_that_a_document_of_its_window_comes_before_is_a_label_once(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, seq_length = rng.integers(0, 30, 60).tolist(), int(rng.integers(1, 24))
    parts = [lengths[:25], lengths[25:26], lengths[26:]]
    firsts = np.cumsum([0, *map(sum, parts)])
    paths = [write(tmp_path / str(number), part, firsts[number]) for number, part in enumerate(parts)]
    data = TokenDataset(paths, seq_length, align_documents=True)
    tokens, labels = pickle.loads(pickle.dumps(data)).batch(np.arange(data.num_samples))
    wanted = labels != IGNORED
    assert (labels[wanted] == tokens[wanted] + 1).all()
    assert (wanted.argmin(axis=1)[~wanted.all(axis=1)] == wanted.sum(axis=1)[~wanted.all(axis=1)]).all()
    found = labels[wanted].tolist()
    assert found == sorted(set(found))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    opening = set(tokens[:, 0].tolist()) & set(starts.tolist())
    alone = {start for start, length in zip(starts.tolist(), lengths, strict=True) if length == 1} - set(found)
    assert set(found) == set(range(sum(lengths))) - opening - alone
    for start, end in zip(starts, ends, strict=True):
        rows = {
            row
            for row in range(len(tokens))
            if wanted[row].any() and ((labels[row] > start) & (labels[row] < end)).any()
        }
        if end - start <= seq_length + 1:
            assert len(rows) <= 1


def test_a_corpus_of_one_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 tokens, too few for one sample: seq_length 8 needs at least 2"):
        aligned(tmp_path / "c", [0, 1, 0], 8)


def test_alignment_is_told_with_its_padding(tmp_path: Path) -> None:
    data = TokenDataset([write(tmp_path / "c", [5, 5, 2])], 4, align_documents=True)
    assert data.note() == ", documents aligned with 25.0% padding"
