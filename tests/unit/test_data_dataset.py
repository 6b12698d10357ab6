"""Windows over token files: every token a label once, across files, with refusals before training."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.indexed_format import CODE_OF_DTYPE, HEADER, MAGIC
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loss_mask import IGNORED


def corpus(prefix: Path, tokens: np.ndarray, vocab_size: int = 1000) -> Path:
    with IndexedWriter(prefix, vocab_size=vocab_size) as writer:
        for document in np.array_split(tokens, 3):
            writer.add_document(document)
    return prefix


def test_windows_share_one_token(tmp_path: Path) -> None:
    data = TokenDataset([corpus(tmp_path / "a", np.arange(23))], 5)
    assert len(data) == data.num_samples == 4
    assert [data[i].tolist() for i in range(4)] == [list(range(5 * i, 5 * i + 6)) for i in range(4)]
    assert data[0].dtype == np.int64
    with pytest.raises(IndexError, match="sample 4 of 4"):
        data[4]
    with pytest.raises(IndexError, match="sample 4 of 4"):
        data.batch(np.array([0, 4]))


def test_windows_run_over_file_borders(tmp_path: Path) -> None:
    parts = np.split(np.arange(40), [7, 9, 26])
    paths = [corpus(tmp_path / f"part{i}", part) for i, part in enumerate(parts)]
    several, one = TokenDataset(paths, 6), TokenDataset([corpus(tmp_path / "whole", np.arange(40))], 6)
    every = np.arange(one.num_samples)
    assert several.num_samples == one.num_samples == 6
    for got, expected in zip(several.batch(every), one.batch(every), strict=True):
        assert np.array_equal(got, expected)


def test_batch_shifts_labels_and_marks_fillers(tmp_path: Path) -> None:
    data = TokenDataset([corpus(tmp_path / "a", np.arange(23))], 5)
    tokens, labels = data.batch(np.array([1, -1]))
    assert tokens[0].tolist() == [5, 6, 7, 8, 9]
    assert labels[0].tolist() == [6, 7, 8, 9, 10]
    assert labels[1].tolist() == [IGNORED] * 5
    assert tokens[1].min() >= 0


@pytest.mark.parametrize("total", [2, 5, 6, 7, 10, 11, 12, 23])
def test_padded_windows_supervise_every_token_once(tmp_path: Path, total: int) -> None:
    data = TokenDataset([corpus(tmp_path / "a", np.arange(total))], 5, pad_last=True)
    _, labels = data.batch(np.arange(data.num_samples))
    assert labels[labels != IGNORED].tolist() == list(range(1, total))


def test_too_short_is_refused(tmp_path: Path) -> None:
    path = corpus(tmp_path / "a", np.arange(5))
    with pytest.raises(DataError, match=r"/a: 5 tokens, too few for one sample: seq_length 5 needs at least 6"):
        TokenDataset([path], 5)
    assert TokenDataset([path], 4).num_samples == 1
    with pytest.raises(DataError, match=r"dataset\.paths is empty"):
        TokenDataset([], 4)


def test_recorded_vocabulary_is_checked_before_any_token_is_read(tmp_path: Path) -> None:
    path = corpus(tmp_path / "a", np.arange(20))
    counts = {"documents": 3, "tokens": 20, "utf8_bytes": 20}
    record = {"format": "meshwright-corpus", "version": 1, "vocab_size": 1000, "dtype": "uint16", "eos_id": 0}
    record |= {"eos_token": "<e>", "tokenizer_sha256": "0", "eval_fraction": 0.0, "train": counts, "files": 1}
    record |= {"eval": counts, "dropped": {}, "invalid_utf8": 0, "inputs": ["x"]}
    (tmp_path / "a.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"vocabulary of 1000, but model.vocab_size is 999; .* at least 1000"):
        TokenDataset([path], 4, vocab_size=999)
    # The record vouches for uint16, so a model with a larger vocabulary may use the corpus.
    assert TokenDataset([path], 4, vocab_size=128_256).num_samples == 4
    (tmp_path / "a.json").write_text(json.dumps(record | {"dtype": "int32"}))
    with pytest.raises(DataError, match=r"a\.idx: byte 17: ids are uint16, not int32"):
        TokenDataset([path], 4)
    (tmp_path / "a.json").write_text('{"format": "meshwright-corpus", "version": 1}')
    with pytest.raises(DataError, match=r"a\.json: vocab_size: is missing"):
        TokenDataset([path], 4)
    (tmp_path / "a.json").write_text('{"someone": "else"}')
    assert TokenDataset([path], 4).num_samples == 4


def test_a_hundred_gigabytes_of_index_are_opened_and_told_apart_without_being_read(tmp_path: Path) -> None:
    """Five billion documents of two tokens, as sparse files: reading the index would take minutes, or all memory."""
    documents = 5 * 10**9
    index = (("<i", 34 + 4 * (documents - 1), 2), ("<q", 34 + 12 * documents - 8, 4 * (documents - 1)))
    with open(tmp_path / "a.idx", "wb") as file:
        file.write(HEADER.pack(MAGIC, 1, CODE_OF_DTYPE[np.dtype(np.uint16)], documents, documents + 1))
        for form, at, value in (*index, ("<q", 34 + 20 * documents, documents)):
            file.seek(at)
            file.write(struct.pack(form, value))
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(4 * documents)
    data = TokenDataset([tmp_path / "a"], 4096)
    assert data.num_samples == (2 * documents - 1) // 4096
    assert data[data.num_samples - 1].tolist() == [0] * 4097
    before = data.fingerprint()
    with open(tmp_path / "a.bin", "r+b") as file:
        file.write(b"1")
    assert data.fingerprint() != before


def test_fingerprint_tells_corpora_apart(tmp_path: Path) -> None:
    a, b = corpus(tmp_path / "a", np.arange(40)), corpus(tmp_path / "b", np.arange(40))
    c = corpus(tmp_path / "c", np.append(np.arange(39), 0))
    prints = [TokenDataset(paths, 4).fingerprint() for paths in ([a], [b], [c], [a, c], [c, a])]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4
    assert len(prints[0]) == 64
