"""Loss masks beside token files: what they leave of the labels, how they are written, and when they are refused."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from meshwright.data.blend import BlendedDataset
from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loss_mask import HEADER, IGNORED, MAGIC, LossMask, MaskWriter
from meshwright.data.own_labels import LabelWriter, OwnLabels, open_mask
from meshwright.data.preparation.prepare import prepare

RNG = np.random.default_rng(6)
LENGTHS = [1, 0, 13, 8, 27, 5, 16]


def mask_path(prefix: Path) -> Path:
    return Path(f"{prefix}.mask")


def write(prefix: Path, lengths: list[int], first: int = 0, *, masked: bool = True) -> np.ndarray:
    """A corpus in which token number = id, and its mask, bool [tokens]."""
    mask = RNG.random(sum(lengths)) < 0.6
    ends = np.cumsum(lengths)
    with IndexedWriter(prefix, vocab_size=1000, beside=MaskWriter if masked else None) as writer:
        for start, end in zip(ends - lengths, ends, strict=True):
            ids = np.arange(start, end) + first
            writer.add_document(ids, np.where(mask[start:end], ids, IGNORED) if masked else None)
    return mask if masked else np.ones_like(mask)


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 70])
def test_any_slice_is_read_as_it_was_written(tmp_path: Path, tokens: int) -> None:
    mask = write(tmp_path / "c", [tokens // 3, tokens - tokens // 3])
    found = pickle.loads(pickle.dumps(LossMask(tmp_path / "c", tokens)))
    assert found.supervised == mask.sum()
    for start in range(tokens + 1):
        for end in range(start, tokens + 1):
            assert found.read(start, end - start).tolist() == mask[start:end].tolist()


def test_the_layout_is_this_one_and_the_pair_is_as_without_a_mask(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "c", vocab_size=1000, beside=MaskWriter) as writer:
        writer.add_document(np.arange(3), np.array([-100, 1, 2]))
        writer.add_documents(np.arange(6), np.array([2, 4]), np.array([-100] * 5 + [5]))
        writer.add_document(np.arange(2))
    head = b"MWMASK\0\0" + b"".join(number.to_bytes(8, "little") for number in (1, 11, 5))
    assert mask_path(tmp_path / "c").read_bytes() == head + bytes([0b00000110, 0b00000111])
    with IndexedWriter(tmp_path / "d", vocab_size=1000) as writer:
        for number in (3, 2, 4, 2):
            writer.add_document(np.arange(number) if number != 4 else np.arange(2, 6))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"c.{suffix}").read_bytes() == (tmp_path / f"d.{suffix}").read_bytes()


@pytest.mark.parametrize("pad_last", [False, True])
def test_unsupervised_tokens_are_no_labels_and_nothing_else_changes(tmp_path: Path, pad_last: bool) -> None:
    masks = [
        write(tmp_path / "a", LENGTHS),
        write(tmp_path / "b", [9, 4], 70, masked=False),
        write(tmp_path / "c", [30], 83),
    ]
    paths = [tmp_path / name for name in "abc"]
    data = TokenDataset(paths, 8, pad_last=pad_last)
    tokens, labels = data.batch(np.arange(-1, data.num_samples))
    for name in "ac":
        mask_path(tmp_path / name).unlink()
    plain = TokenDataset(paths, 8, pad_last=pad_last).batch(np.arange(-1, data.num_samples))
    supervised = np.concatenate(masks)
    assert data.supervised_tokens == supervised.sum()
    assert np.array_equal(tokens, plain[0])
    # An id is the number of its token, so a plain label tells which bit of the mask is its own.
    kept = (plain[1] != IGNORED) & supervised[plain[1]]
    assert np.array_equal(labels, np.where(kept, plain[1], IGNORED))


def test_a_blend_and_isolated_documents_keep_the_mask(tmp_path: Path) -> None:
    mask = write(tmp_path / "a", LENGTHS)
    write(tmp_path / "b", [50], 70, masked=False)
    sources = [TokenDataset([tmp_path / name], 8, isolate_documents=True) for name in "ab"]
    data = BlendedDataset(sources, [1, 1])
    _, labels, positions = data.batch(np.arange(data.num_samples))
    first_of_documents = np.cumsum(LENGTHS) - LENGTHS
    expected = [token for token in range(1, 65) if mask[token] and token not in first_of_documents]
    assert labels[:8][labels[:8] != IGNORED].tolist() == expected
    assert (labels[8:] == np.arange(71, 119).reshape(6, 8)).all()
    assert positions[0].tolist() == [0, *range(7)]


def test_the_mask_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    write(tmp_path / "c", LENGTHS)
    prints = [TokenDataset([tmp_path / "c"], 8).fingerprint()]
    for _ in range(2):
        write(tmp_path / "c", LENGTHS)
        prints.append(TokenDataset([tmp_path / "c"], 8).fingerprint())
    mask_path(tmp_path / "c").unlink()
    prints.append(TokenDataset([tmp_path / "c"], 8).fingerprint())
    assert len(set(prints)) == 4


def test_a_corpus_written_anew_without_a_mask_does_not_keep_the_old_one(tmp_path: Path) -> None:
    write(tmp_path / "c", LENGTHS)
    write(tmp_path / "c", LENGTHS, masked=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.bin", "c.idx"]
    assert open_mask(tmp_path / "c", 70) is None


@pytest.mark.parametrize("labels", [np.arange(2), np.arange(3, dtype=np.uint16)])
def test_a_writer_that_fails_leaves_nothing(tmp_path: Path, labels: np.ndarray) -> None:
    """Unsigned labels cannot be -100: it becomes an id, and all would be supervised."""
    with (
        pytest.raises(ValueError, match="labels for 3 tokens"),
        IndexedWriter(tmp_path / "c", vocab_size=1000, beside=MaskWriter) as writer,
    ):
        writer.add_document(np.arange(3), labels)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "c.mask: byte 0: expected b'MWMASK"),
        (MAGIC + b"1234", "c.mask: truncated at byte 12: the header has 32 bytes"),
        (HEADER.pack(MAGIC, 2, 70, 9) + bytes(9), "c.mask: byte 8: version 2, only version 1 is known"),
        (
            HEADER.pack(MAGIC, 1, 60, 9) + bytes(8),
            r"c.mask: is for 60 tokens, but .*c.bin has 70: that of other data",
        ),
        (HEADER.pack(MAGIC, 1, 70, 9) + bytes(8), "c.mask: truncated: 40 bytes, but 70 tokens need 41"),
        (HEADER.pack(MAGIC, 1, 70, 9) + bytes(10), "c.mask: longer than its header says: 42 bytes, but 70 tokens"),
        (HEADER.pack(MAGIC, 1, 70, 0) + bytes(9), "c.mask: no token is supervised: there is nothing to learn"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    write(tmp_path / "c", LENGTHS)
    mask_path(tmp_path / "c").write_bytes(raw)
    with pytest.raises(DataError, match=message):
        TokenDataset([tmp_path / "c"], 8)


def write_own(prefix: Path, labels: list[int]) -> None:
    with IndexedWriter(prefix, vocab_size=1000, beside=LabelWriter) as writer:
        writer.add_document(np.arange(len(labels)), np.array(labels))


def test_labels_of_their_own_stand_in_the_places_of_the_tokens(tmp_path: Path) -> None:
    own = [-100, 500, -100, 502, 503, -100, 505, 506, 507, 508]
    write_own(tmp_path / "c", own)
    head = b"MWLABEL\0" + b"".join(number.to_bytes(8, "little") for number in (1, 10, 7))
    assert (tmp_path / "c.labels").read_bytes() == head + np.array(own, "<i4").tobytes()
    data = TokenDataset([tmp_path / "c"], 4, vocab_size=1000, pad_last=True)
    tokens, labels = data.batch(np.arange(3))
    assert tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 0, 0, 0]]
    assert labels.tolist() == [own[1:5], own[5:9], [508, -100, -100, -100]]
    assert data.note() == ", 70.0% of the tokens supervised by loss masks"
    found = pickle.loads(pickle.dumps(OwnLabels(tmp_path / "c", 10)))
    assert found.read(2, 4).tolist() == [False, True, True, False]


@pytest.mark.parametrize("label", [1000, -1])
def test_a_label_outside_the_vocabulary_is_refused_with_its_place(tmp_path: Path, label: int) -> None:
    write_own(tmp_path / "c", [-100, 1, label, 3, 4])
    data = TokenDataset([tmp_path / "c"], 4, vocab_size=1000)
    with pytest.raises(
        DataError, match=rf"c.labels: label 2 \(byte 40\) is id {label}, outside the vocabulary of 1000"
    ):
        data.batch(np.array([0]))


@pytest.mark.parametrize("suffix", ["mask", "labels"])
def test_a_mask_that_is_there_but_cannot_be_read_is_not_none(tmp_path: Path, suffix: str) -> None:
    """A link that leads nowhere, or no file at all: without a word, everything would be trained on."""
    write(tmp_path / "c", [70], masked=False)
    path = tmp_path / f"c.{suffix}"
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=rf"c\.{suffix}: cannot be read: No such file"):
        open_mask(tmp_path / "c", 70)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=rf"c\.{suffix}: cannot be read: Is a directory"):
        open_mask(tmp_path / "c", 70)


def test_a_mask_beside_labels_is_refused_and_both_go_with_the_old_tokens(tmp_path: Path) -> None:
    write_own(tmp_path / "c", [1] * 70)
    (tmp_path / "c.mask").write_bytes(b"")
    with pytest.raises(DataError, match=r"c: has both a \.mask and a \.labels file: which of them counts"):
        open_mask(tmp_path / "c", 70)
    write(tmp_path / "c", LENGTHS, masked=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.bin", "c.idx"]


def test_a_corpus_prepared_anew_does_not_keep_a_mask_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text\n")
    prepare([tmp_path / "a.txt"], tmp_path / "c", train_vocab_size=257, eval_fraction=0)
    for suffix in (".mask", ".eval.labels"):
        (tmp_path / f"c{suffix}").write_bytes(b"")
    prepare([tmp_path / "a.txt"], tmp_path / "c", train_vocab_size=257, eval_fraction=0, overwrite=True)
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".mask", ".labels")] == []


def test_a_corpus_of_which_only_first_tokens_could_be_labels_is_refused(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "a", vocab_size=10, beside=MaskWriter) as writer:
        writer.add_document(np.arange(9), np.array([0] + [IGNORED] * 8))
    with IndexedWriter(tmp_path / "b", vocab_size=10) as writer:
        for number in range(9):
            writer.add_document(np.array([number]))
    for name, isolate in (("a", False), ("b", True)):
        with pytest.raises(DataError, match="only first tokens could be predicted, from nothing"):
            TokenDataset([tmp_path / name], 4, isolate_documents=isolate)
    assert TokenDataset([tmp_path / "a", tmp_path / "b"], 4).num_samples == 4
    assert TokenDataset([tmp_path / "b"], 4).num_samples == 2
    with IndexedWriter(tmp_path / "c", vocab_size=10) as writer:
        writer.add_documents(np.arange(4), np.array([0, 0, 2, 0, 0, 2, 0]))
    assert TokenDataset([tmp_path / "b", tmp_path / "c"], 4, isolate_documents=True).num_samples == 3
