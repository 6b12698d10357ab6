"""The token store: exact bytes, exact round trip, refusals with file and position."""

import errno
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.file_state import told_if_unreadable
from meshwright.data.indexed import IndexedDataset
from meshwright.data.indexed_format import bin_path, dtype_for_vocab, idx_path
from meshwright.data.indexed_writer import IndexedWriter, write_index
from meshwright.data.loss_mask import MaskWriter


def write(prefix: Path, documents: list[list[int]], vocab_size: int) -> Path:
    with IndexedWriter(prefix, vocab_size=vocab_size) as writer:
        for document in documents:
            writer.add_document(np.array(document))
    return prefix


def test_bytes_are_those_of_megatron_core(tmp_path: Path) -> None:
    prefix = write(tmp_path / "corpus", [[1, 2, 3], [4], [5, 6]], vocab_size=100)
    assert bin_path(prefix).read_bytes() == struct.pack("<6H", 1, 2, 3, 4, 5, 6)
    assert idx_path(prefix).read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<Q", 1)
        + struct.pack("<B", 8)
        + struct.pack("<Q", 3)
        + struct.pack("<Q", 4)
        + struct.pack("<3i", 3, 1, 2)
        + struct.pack("<3q", 0, 6, 8)
        + struct.pack("<4q", 0, 1, 2, 3)
    )


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65499, "uint16"), (65500, "int32"), (151936, "int32")])
def test_dtype_follows_the_vocabulary(vocab_size: int, dtype: str) -> None:
    assert dtype_for_vocab(vocab_size) == np.dtype(dtype)


@pytest.mark.parametrize("last", [65535, 65536, 151935])
def test_b22_ids_survive_exactly(tmp_path: Path, last: int) -> None:
    document = [0, 65498, 65535, last]
    data = IndexedDataset(write(tmp_path / "corpus", [document], vocab_size=last + 1))
    assert data.dtype == np.dtype("int32")
    assert data.sequence(0).tolist() == document


def test_b22_id_65535_in_a_uint16_file_is_readable(tmp_path: Path) -> None:
    prefix = tmp_path / "foreign"
    bin_path(prefix).write_bytes(struct.pack("<2H", 65535, 7))
    write_index(idx_path(prefix), np.array([2], np.int32), np.dtype("<u2"))
    assert IndexedDataset(prefix, vocab_size=65536).sequence(0).tolist() == [65535, 7]


def test_b22_a_document_of_70000_tokens_keeps_its_length(tmp_path: Path) -> None:
    long = np.arange(70000) % 60000
    data = IndexedDataset(write(tmp_path / "corpus", [[1], long.tolist(), [2]], vocab_size=60000))
    assert data.lengths.tolist() == [1, 70000, 1]
    assert np.array_equal(data.sequence(1), long)
    assert data.sequence(2).tolist() == [2]


def test_b22_offsets_past_two_gigabytes(tmp_path: Path) -> None:
    prefix = tmp_path / "huge"
    write_index(idx_path(prefix), np.array([600_000_000] * 2, np.int32), np.dtype("<i4"))
    with open(bin_path(prefix), "wb") as file:
        os.truncate(file.fileno(), 2 * 2_400_000_000)  # sparse: takes no room on disk
        file.seek(2_400_000_000)
        file.write(struct.pack("<2i", 151935, 8))
    data = IndexedDataset(prefix)
    data.verify()
    assert data.pointers.tolist() == [0, 2_400_000_000]
    assert data.sequence(1)[:2].tolist() == [151935, 8]
    assert len(data.sequence(1)) == 600_000_000


def test_b22_another_dtype_is_refused_with_file_and_position(tmp_path: Path) -> None:
    prefix = write(tmp_path / "corpus", [[1, 2]], vocab_size=100)
    with pytest.raises(DataError, match=r"corpus\.idx: byte 17: ids are uint16, not int32"):
        IndexedDataset(prefix, dtype="int32")
    with pytest.raises(DataError, match=r"corpus\.idx: byte 17: .* too narrow for a vocabulary of 151936"):
        IndexedDataset(prefix, vocab_size=151936)


def test_b22_an_id_outside_the_vocabulary_is_refused_when_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"corpus\.bin: token 3 would be id 100, outside the vocabulary of 100"):
        write(tmp_path / "corpus", [[1, 2], [3, 100]], vocab_size=100)
    assert list(tmp_path.iterdir()) == []


def test_b22_an_id_outside_the_vocabulary_is_refused_when_read(tmp_path: Path) -> None:
    prefix = write(tmp_path / "corpus", [list(range(10)), [11, 50, 12]], vocab_size=100)
    data = TokenDataset([prefix], 4, vocab_size=50)
    data.batch(np.array([0, 1]))
    with pytest.raises(DataError, match=r"corpus\.bin: token 11 \(byte 22\) is id 50, .* vocabulary of 50"):
        data.batch(np.array([2]))


def test_nothing_appears_before_finalize(tmp_path: Path) -> None:
    writer = IndexedWriter(tmp_path / "corpus", vocab_size=10)
    writer.add_document(np.array([1]))
    assert not bin_path(writer.prefix).exists()
    assert not idx_path(writer.prefix).exists()
    writer.finalize()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.bin", "corpus.idx"]


def test_many_documents_at_once_equal_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "single", [[1, 2], [3]], vocab_size=10)
    with IndexedWriter(tmp_path / "batch", vocab_size=10) as writer:
        writer.add_documents(np.array([1, 2, 3]), np.array([2, 1]))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"single{suffix}").read_bytes() == (tmp_path / f"batch{suffix}").read_bytes()


def test_empty_corpus_round_trips(tmp_path: Path) -> None:
    data = IndexedDataset(write(tmp_path / "corpus", [], vocab_size=10))
    data.verify()
    assert (len(data), data.documents, len(data.tokens)) == (0, 0, 0)


def test_pickle_reopens_instead_of_copying(tmp_path: Path) -> None:
    data = IndexedDataset(write(tmp_path / "corpus", [list(range(50)) * 1000], vocab_size=100))
    body = pickle.dumps(data)
    assert len(body) < 1000
    assert np.array_equal(pickle.loads(body).tokens, data.tokens)


@pytest.mark.parametrize("suffix", ["bin", "idx", "mask"])
def test_a_process_that_opens_other_files_than_the_first_is_refused(tmp_path: Path, suffix: str) -> None:
    prefix = tmp_path / "corpus"
    with IndexedWriter(prefix, vocab_size=100, beside=MaskWriter) as writer:
        writer.add_document(np.arange(50), np.arange(50))
    body = pickle.dumps(TokenDataset([prefix], 8))
    changed = Path(f"{prefix}.{suffix}")
    os.utime(changed, ns=(0, 0))
    with pytest.raises(DataError, match=rf"corpus\.{suffix}: has changed since this command began"):
        pickle.loads(body)


def test_a_read_that_fails_is_told_with_the_file() -> None:
    """Unlike that of opening one, the error of reading from a bad disk does not name it."""
    message = r"^c\.bin: cannot be read: Input/output error$"
    with pytest.raises(DataError, match=message), told_if_unreadable(Path("c.bin")):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def damaged(prefix: Path, change: str) -> None:
    index, tokens = idx_path(prefix).read_bytes(), bin_path(prefix).read_bytes()
    match change:
        case "magic":
            index = b"TNTIDX\x00\x00\x00" + index[9:]
        case "version":
            index = index[:9] + struct.pack("<Q", 2) + index[17:]
        case "dtype code":
            index = index[:17] + b"\x06" + index[18:]
        case "short header":
            index = index[:20]
        case "short index":
            index = index[:-1]
        case "multimodal":
            index += b"\x00\x00"
        case "short tokens":
            tokens = tokens[:-1]
        case "long tokens":
            tokens += b"\x00"
        case "borders":
            index = index[:-8] + struct.pack("<q", 1)
    idx_path(prefix).write_bytes(index)
    bin_path(prefix).write_bytes(tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("magic", r"corpus\.idx: byte 0: .*not a Megatron index file"),
        ("version", r"corpus\.idx: byte 9: version 2"),
        ("dtype code", r"corpus\.idx: byte 17: dtype code 6 is no integer"),
        ("short header", r"corpus\.idx: truncated at byte 20"),
        ("short index", r"corpus\.idx: truncated: 81 bytes, .* need 82"),
        ("multimodal", r"corpus\.idx: a multimodal index"),
        ("short tokens", r"corpus\.bin: truncated: 9 bytes, .* needs 10"),
        ("long tokens", r"corpus\.bin: longer than its index says: 11 bytes"),
        ("borders", r"corpus\.idx: byte 58: document borders do not span"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: str, message: str) -> None:
    prefix = write(tmp_path / "corpus", [[1, 2, 3], [4, 5]], vocab_size=100)
    damaged(prefix, change)
    with pytest.raises(DataError, match=message):
        IndexedDataset(prefix)


def test_verify_finds_a_moved_sequence(tmp_path: Path) -> None:
    prefix = write(tmp_path / "corpus", [[1, 2, 3], [4, 5], [6]], vocab_size=100)
    index = bytearray(idx_path(prefix).read_bytes())
    struct.pack_into("<q", index, 34 + 3 * 4 + 8, 4)
    idx_path(prefix).write_bytes(index)
    with pytest.raises(DataError, match="sequence 1: starts at byte 4 of the token file, expected 6"):
        IndexedDataset(prefix).verify()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.idx: no such file"):
        IndexedDataset(tmp_path / "nothing")
