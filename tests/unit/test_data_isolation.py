"""Positions inside documents and labels at their borders, where documents of a sample are kept apart (B-23)."""

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest

from meshwright.data.blend import BlendedDataset
from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset
from meshwright.data.indexed_format import HEADER, MAGIC, bin_path, idx_path
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.isolation import document_starts
from meshwright.data.loader import build_loader
from meshwright.data.loss_mask import IGNORED

EOS = 0


def write(prefix: Path, lengths: list[int]) -> Path:
    """Documents of numbered tokens; ``lengths`` count the end-of-text that each ends with."""
    numbers = itertools.count(1)
    with IndexedWriter(prefix, vocab_size=1000) as writer:
        for length in lengths:
            writer.add_document(np.array([*itertools.islice(numbers, length - 1), EOS]))
    return prefix


def test_b23_positions_restart_and_every_end_of_text_is_supervised(tmp_path: Path) -> None:
    data = TokenDataset([write(tmp_path / "a", [3, 4, 6])], 6, isolate_documents=True, pad_last=True)
    assert data.note() == ", documents isolated"
    tokens, labels, positions = data.batch(np.array([0, 1, -1]))
    assert tokens.tolist() == [[1, 2, EOS, 3, 4, 5], [EOS, 6, 7, 8, 9, 10], [0] * 6]
    assert positions[:2].tolist() == [[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4]]
    # The first token of a document follows nothing; the end-of-text is foretold by its document, also by a window's
    # last token.
    assert labels.tolist() == [[2, EOS, IGNORED, 4, 5, EOS], [IGNORED, 7, 8, 9, 10, EOS], [IGNORED] * 6]


def test_b23_a_pad_with_the_id_of_end_of_text_is_harmless(tmp_path: Path) -> None:
    """Padding after the last token is unsupervised and divides nothing, whatever its id means."""
    data = TokenDataset([write(tmp_path / "a", [2, 5])], 5, isolate_documents=True, pad_last=True)
    tokens, labels, _ = data.batch(np.array([1]))
    assert tokens.tolist() == [[5, EOS, EOS, EOS, EOS]]
    assert labels.tolist() == [[EOS, *[IGNORED] * 4]]


def test_an_end_of_text_inside_a_document_is_no_border(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "a", vocab_size=1000) as writer:
        writer.add_document(np.array([1, EOS, 2, EOS]))
        writer.add_document(np.array([3, 4, EOS]))
    _, labels, positions = TokenDataset([tmp_path / "a"], 6, isolate_documents=True).batch(np.array([0]))
    assert positions.tolist() == [[0, 1, 2, 3, 0, 1]]
    assert labels.tolist() == [[EOS, 2, EOS, IGNORED, 4, EOS]]


def test_positions_are_those_of_a_count_over_the_whole_stream(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = [random.integers(1, 20, 30).tolist() for _ in range(4)]
    data = TokenDataset(
        [write(tmp_path / f"part{number}", part) for number, part in enumerate(lengths)], 13, isolate_documents=True
    )
    stream = np.concatenate([np.arange(length) for part in lengths for length in part])
    first = np.arange(data.num_samples)
    _, labels, positions = data.batch(first)
    for sample in first:
        start = sample * 13
        inside = stream[start : start + 14] - np.where(
            np.cumsum(stream[start : start + 14] == 0) == 0, stream[start], 0
        )
        assert positions[sample].tolist() == inside[:-1].tolist()
        assert ((labels[sample] == IGNORED) == (stream[start + 1 : start + 14] == 0)).all()


def test_a_document_of_several_sequences_is_one_document(tmp_path: Path) -> None:
    """As other programs write them: a document per line, a sequence per sentence; empty ones count for nothing."""
    prefix, lengths, borders = tmp_path / "foreign", [2, 3, 0, 4], [0, 2, 2, 3, 4]
    pointers = [0, 4, 10, 10]
    bin_path(prefix).write_bytes(np.arange(9, dtype="<u2").tobytes())
    idx_path(prefix).write_bytes(
        HEADER.pack(MAGIC, 1, 8, 4, 5)
        + struct.pack("<4i", *lengths)
        + struct.pack("<4q", *pointers)
        + struct.pack("<5q", *borders)
    )
    _, _, positions = TokenDataset([prefix], 8, isolate_documents=True).batch(np.array([0]))
    assert positions.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2]]
    assert document_starts(IndexedDataset(prefix), 6, 9).tolist() == []


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a", [4] * 5)
    raw = bytearray(idx_path(prefix).read_bytes())
    # The first byte of document 3: far behind that of the next.
    struct.pack_into("<q", raw, HEADER.size + 5 * 4 + 3 * 8, 1 << 40)
    idx_path(prefix).write_bytes(raw)
    with pytest.raises(DataError, match=r"a\.idx: documents 1 to 4: not in the order of the token file"):
        document_starts(IndexedDataset(prefix), 4, 20)


def test_blends_and_worker_processes_hand_positions_on(tmp_path: Path) -> None:
    sources = [
        TokenDataset([write(tmp_path / name, lengths)], 4, isolate_documents=True)
        for name, lengths in (("web", [3, 6, 4]), ("code", [5, 4]))
    ]
    data = BlendedDataset(sources, [1, 1])
    _, _, positions = data.batch(np.array([3, 0]))
    assert positions.tolist() == [[0, 1, 2, 3], [0, 1, 2, 0]]
    with build_loader(
        data,
        order=data.order(seed=1),
        first_step=0,
        num_steps=1,
        global_batch_size=4,
        data_rank=0,
        data_parallel=1,
        num_parallel_workers=1,
        prefetch_size=1,
    ) as loader:
        batch = next(loader)
    expected = data.batch(data.order(seed=1).samples(np.arange(4)))
    assert batch.positions is not None
    assert [batch.tokens.tolist(), batch.labels.tolist(), batch.positions.tolist()] == [a.tolist() for a in expected]


def test_without_isolation_there_are_no_positions(tmp_path: Path) -> None:
    data = TokenDataset([write(tmp_path / "a", [3, 4])], 6)
    assert len(data.batch(np.array([0]))) == 2
