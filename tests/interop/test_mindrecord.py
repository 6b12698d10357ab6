"""MindRecord files written by MindSpore, read without it: every row, what import makes of them, what it refuses."""

import errno
import hashlib
import io
import json
import math
import shutil
import sqlite3
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import mindrecord_files
from meshwright.cli import main
from meshwright.data import indexed_writer
from meshwright.data.corpus import find_files
from meshwright.data.dataset import TokenDataset
from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset
from meshwright.data.loss_mask import IGNORED
from meshwright.data.mindrecord.convert import import_mindrecord
from meshwright.data.mindrecord.files import is_mindrecord, open_mindrecord
from meshwright.data.own_labels import open_mask
from meshwright.data.preparation.prepare import prepare
from meshwright.data.vocabulary.tokenizer import load_tokenizer

EXPECTED: dict[str, list[dict[str, Any]]] = {
    name.split()[0]: rows
    for name, rows in json.loads((mindrecord_files.DATA / "expected_mindrecord.json").read_text()).items()
}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return mindrecord_files.extract(tmp_path / "records")


def require_equal(value: Any, wanted: Any) -> None:
    if not isinstance(wanted, dict):
        assert value == wanted
    elif "bytes_hex" in wanted:
        assert value.hex() == wanted["bytes_hex"]
    else:
        assert (str(value.dtype), list(value.shape)) == (wanted["dtype"], wanted["shape"])
        if "sha256" in wanted:
            assert hashlib.sha256(value.tobytes()).hexdigest() == wanted["sha256"]
        else:
            assert value.reshape(-1).tolist() == wanted["ndarray"]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_row_is_what_mindspore_wrote(records: Path, name: str) -> None:
    file = open_mindrecord(records / name)
    rows = [row.values for row in file.read(file.columns)]
    wanted = [{"input_ids": row} if "sha256" in row else row for row in EXPECTED[name]]
    assert file.rows == len(rows) == len(wanted)
    for row, values in zip(rows, wanted, strict=True):
        assert row.keys() == values.keys()
        for column, value in values.items():
            require_equal(row[column], value)


@pytest.mark.parametrize(
    ("name", "vocab_size", "dtype"),
    [
        ("lm_pretrain.mindrecord", 64, "uint16"),
        ("multipage.mindrecord", 70000, "int32"),
        ("shards.mindrecord1", 11, "uint16"),
    ],
)
def test_pretraining_rows_become_documents(
    records: Path, tmp_path: Path, name: str, vocab_size: int, dtype: str
) -> None:
    report = import_mindrecord(records / name, tmp_path / "out" / "corpus", vocab_size=vocab_size)
    data = IndexedDataset(tmp_path / "out" / "corpus", vocab_size=vocab_size)
    wanted = EXPECTED["shards.mindrecord" if name.startswith("shards") else name]
    assert (data.documents, data.dtype.name) == (len(wanted), dtype) == (report.documents, report.dtype)
    for number, row in enumerate(wanted):
        width = row.get("input_ids", row)["dtype"]
        require_equal(data.sequence(number).astype(width), row.get("input_ids", row))


def test_training_reads_imported_rows(records: Path, tmp_path: Path) -> None:
    import_mindrecord(records / "lm_pretrain.mindrecord", tmp_path / "corpus", vocab_size=64)
    tokens, labels = TokenDataset([tmp_path / "corpus"], 17, vocab_size=64).batch(np.array([0, 10]))
    rows = [row["input_ids"]["ndarray"] for row in EXPECTED["lm_pretrain.mindrecord"]]
    assert tokens.tolist() == [rows[0], rows[10]]
    assert labels.tolist() == [[*rows[0][1:], rows[1][0]], [*rows[10][1:], rows[11][0]]]


def save_tokenizer(path: Path, *special: str) -> None:
    vocabulary = {"</s>": 0, **{chr(64 + number): number for number in range(1, 64)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="A"))
    tokenizer.pre_tokenizer = pre_tokenizers.Punctuation()
    tokenizer.add_special_tokens(list(special) or ["</s>"])
    tokenizer.save(str(path))


def test_the_tokenizer_that_made_the_ids_travels_along(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tokenizer(tmp_path / "t.json")
    source, prefix = str(records / "lm_pretrain.mindrecord"), str(tmp_path / "c")
    assert main(["data", "import", source, "--output", prefix, "--tokenizer", str(tmp_path / "t.json"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["documents"], report["tokens"], report["files"]) == (12, 204, [source])
    assert (tmp_path / "c.tokenizer.json").read_bytes() == (tmp_path / "t.json").read_bytes()
    assert main(["data", "inspect", prefix]) == 0
    assert "document 0, token 0, not in the loss: 'o'" in capsys.readouterr().out


def test_a_sentencepiece_model_is_named_and_its_end_of_text_can_be_said(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    lines = [f"the {word} of {word}" for word in ("house", "mouse", "river", "cloud")] * 20
    options = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2, "eos_id": -1, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", control_symbols=["[END]"], **options
    )
    (tmp_path / "t.model").write_bytes(model.getvalue())
    mindrecord_files.write(tmp_path / "r", {"input_ids": "int32"}, [[[1, 2, 3]]])
    request = ["data", "import", str(tmp_path / "r"), "--output", str(tmp_path / "c")]
    assert main([*request, "--tokenizer", str(tmp_path / "t.model")]) == 2
    assert "name it with --eos-token" in capsys.readouterr().err
    assert main([*request, "--tokenizer", str(tmp_path / "t.model"), "--eos-token", "[END]"]) == 0
    assert capsys.readouterr().out.endswith("c.bin .idx .tokenizer.model .tokenizer_config.json\n")
    assert main(["data", "inspect", str(tmp_path / "c")]) == 0
    assert main(["data", "inspect", str(tmp_path / "r"), "--eos-token", "[END]"]) == 2
    assert "--eos-token is for token files" in capsys.readouterr().err
    assert main([*request[:-1], str(tmp_path / "d"), "--vocab-size", "9", "--tiktoken", "gpt2"]) == 2
    assert "about --tokenizer, which is not given" in capsys.readouterr().err


def test_the_token_that_ends_a_text_travels_along(records: Path, tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer.json", "</s>", "<end>", "<other>")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')

    def imported(name: str, tokenizer: Path, **said: str) -> Path:
        import_mindrecord(records / "lm_pretrain.mindrecord", tmp_path / name / "c", tokenizer=tokenizer, **said)
        return tmp_path / name / "c.tokenizer.json"

    assert load_tokenizer(imported("configured", tmp_path)).eos_token == "<end>"
    said = imported("said", tmp_path, eos_token="<other>")
    assert load_tokenizer(said).eos_token == "<other>"
    again = imported("again", said)
    assert load_tokenizer(again).eos_token == "<other>"
    with pytest.raises(DataError, match="exists already"):
        imported("again", said)
    (tmp_path / "a.txt").write_text("A B C")
    request = {"tokenizer": again, "eos_token": "<end>", "eval_fraction": 0, "overwrite": True}
    assert prepare([tmp_path / "a.txt"], again.with_name("c"), **request).eos_token == "<end>"
    assert load_tokenizer(again).eos_token == "<end>"
    assert not again.with_name("c.tokenizer_config.json").exists()


def test_a_full_disk_leaves_nothing_that_blocks_the_next_try(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tokenizer(tmp_path / "t.json")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    request = (records / "mcore_4cols.mindrecord", tmp_path / "out" / "c")
    with monkeypatch.context() as patch:
        patch.setattr(indexed_writer, "write_index", fail)
        with pytest.raises(OSError, match="No space left"):
            import_mindrecord(*request, tokenizer=tmp_path / "t.json")
    assert list((tmp_path / "out").iterdir()) == []
    import_mindrecord(*request, tokenizer=tmp_path / "t.json")
    names = ["c.bin", "c.idx", "c.mask", "c.tokenizer.json", "c.tokenizer_config.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


def documents(prefix: Path) -> list[tuple[list[int], list[int]]]:
    """Ids of each document, and its part of the loss mask as 0 and 1."""
    data = IndexedDataset(prefix)
    ends = np.cumsum(data.lengths)
    mask = open_mask(prefix, len(data.tokens))
    assert mask is not None
    return [
        (data.sequence(number).tolist(), mask.read(int(ends[number] - length), int(length)).astype(int).tolist())
        for number, length in enumerate(data.lengths)
    ]


def test_rows_of_four_columns_keep_every_label_and_what_is_supervised(records: Path, tmp_path: Path) -> None:
    report = import_mindrecord(records / "mcore_4cols.mindrecord", tmp_path / "corpus", vocab_size=64)
    wanted = [{name: row[name]["ndarray"] for name in row} for row in EXPECTED["mcore_4cols.mindrecord"]]
    found = documents(tmp_path / "corpus")
    assert found == [(row["input_ids"] + row["labels"][-1:], [0, *row["loss_mask"]]) for row in wanted]
    assert (report.documents, report.tokens, report.supervised_tokens) == (12, 204, 174)
    # A sample of 16 tokens starts where a row does at every 17th: there the stream gives back the row itself.
    tokens, labels = TokenDataset([tmp_path / "corpus"], 16).batch(np.array([0]))
    assert tokens[0].tolist() == wanted[0]["input_ids"]
    assert labels[0].tolist() == wanted[0]["labels"]
    tokens, labels = TokenDataset([tmp_path / "corpus"], 17, pad_last=True).batch(np.arange(12))
    for row in range(12):
        assert tokens[row, :16].tolist() == wanted[row]["input_ids"]
        masked = zip(wanted[row]["labels"], wanted[row]["loss_mask"], strict=True)
        assert labels[row].tolist() == [label if keep else IGNORED for label, keep in masked] + [IGNORED]


COLUMNS = {"input_ids": "int32", "labels": "int64", "attention_mask": "int32", "position_ids": "int32"}
PLAIN = [[5, 6, 7], [5, 6, 7], [1, 1, 1], [0, 1, 2]]


def test_labels_in_place_become_a_mask_and_padding_goes(tmp_path: Path) -> None:
    rows = [
        [[5, 6, 7, 1, 0, 0], [-100, -100, 7, 1, -100, -100], [1, 1, 1, 1, 0, 0], [0, 1, 2, 3, 4, 5]],
        [[0, 0, 4, 3, 2], [-100, -100, 4, -100, 2], [0, 0, 1, 1, 1], [0, 1, 2, 3, 4]],
        [[9, 8, 3, 3, 3], [-100, 8, -100, -100, -100], [1, 1, 1, 1, 1], [0, 1, 0, 0, 5]],
        [[9, 8], [-100, -100], [1, 1], [0, 1]],
        [[], [], [], []],
        PLAIN,
    ]
    mindrecord_files.write(tmp_path / "r", COLUMNS, rows)
    report = import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=10)
    assert documents(tmp_path / "corpus") == [
        ([5, 6, 7, 1], [0, 0, 1, 1]),
        ([4, 3, 2], [0, 0, 1]),
        ([9, 8], [0, 1]),
        ([5, 6, 7], [0, 1, 1]),
    ]
    assert (report.rows, report.empty_rows, report.left_out_ids, report.supervised_tokens) == (6, 2, 9, 6)


def test_rows_of_nothing_but_padding_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"input_ids": "int32", "attention_mask": "int32"}
    padding = [[[], []], [[0, 0, 0], [0, 0, 0]]]
    mindrecord_files.write(tmp_path / "r", columns, [padding[0], [[5, 6, 0], [1, 1, 0]], padding[1], [[7], [1]]])
    source, options = str(tmp_path / "r"), ["--output", str(tmp_path / "c"), "--vocab-size", "10"]
    assert main(["data", "import", source, *options]) == 0
    assert capsys.readouterr().out.splitlines()[1:4] == [
        "4 rows as 2 documents, 3 tokens (uint16)",
        "left out: 2 rows of nothing but padding",
        "left out: 4 ids of padding",
    ]
    data = IndexedDataset(tmp_path / "c")
    assert [data.sequence(number).tolist() for number in range(2)] == [[5, 6], [7]]
    mindrecord_files.write(tmp_path / "s", columns, padding)
    with pytest.raises(DataError, match="s: no row has an id that is no padding: there is nothing to learn"):
        import_mindrecord(tmp_path / "s", tmp_path / "d", vocab_size=10)
    assert not list(tmp_path.glob("d.*"))


def test_ids_that_nothing_supervised_follows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels ahead: the last one stands for the id that follows in its row, or for none in it."""
    rows = [[[5, 6, 7, 8], [6, 7, -100, -100]], [[5, 6, 0, 0], [6, 2, -100, -100]], [[5, 6], [-100, -100]]]
    mindrecord_files.write(tmp_path / "r", {"input_ids": "int32", "labels": "int32"}, rows)
    options = ["--output", str(tmp_path / "c"), "--vocab-size", "10"]
    assert main(["data", "import", str(tmp_path / "r"), *options]) == 0
    assert documents(tmp_path / "c") == [([5, 6, 7], [0, 1, 1]), ([5, 6, 2], [0, 1, 1])]
    assert capsys.readouterr().out.splitlines()[1:5] == [
        "3 rows as 2 documents, 6 tokens (uint16)",
        "4 of the tokens (66.7%) are supervised",
        "left out: 1 rows without a supervised token",
        "left out: 5 ids of padding, or behind the last supervised one of their document",
    ]


@pytest.mark.parametrize("ahead", [False, True])
def test_rows_on_many_pages_train_on_what_their_labels_say(tmp_path: Path, ahead: bool) -> None:
    """Prompt, answer and padding of any length: each label of a row is one of the corpus, behind the same ids."""
    rng = np.random.default_rng(4)
    rows, wanted = [], []
    for _ in range(60):
        prompt, answer, padding = rng.integers((1, 1, 0), (300, 300, 200)).tolist()
        ids = rng.integers(1, 100, prompt + answer).tolist()
        labels = [-100] * prompt + ids[prompt:]
        if ahead:
            rows.append([ids[:-1] + [0] * padding, labels[1:] + [-100] * padding])
        else:
            rows.append([ids + [0] * padding, labels + [-100] * padding])
        wanted.append((ids, [0] * prompt + [1] * answer))
    mindrecord_files.write(tmp_path / "r", {"input_ids": "int32", "labels": "int32"}, rows)
    assert len(open_mindrecord(tmp_path / "r").shards[0].header.pages) > 1
    import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=100)
    assert documents(tmp_path / "corpus") == wanted


def test_packed_rows_are_divided_where_positions_start_anew(tmp_path: Path) -> None:
    columns = {"input_ids": "int32", "labels": "int32", "loss_mask": "int32", "position_ids": "int32"}
    rows = [
        [[5, 6, 7, 2, 3, 0, 0], [6, 7, 2, 3, 4, 0, 0], [0, 1, 0, 1, 1, 0, 0], [0, 1, 2, 0, 1, 0, 1]],
        [[5, 6, 0], [6, 7, 0], [1, 1, 0], [0, 1, 2]],
    ]
    mindrecord_files.write(tmp_path / "r", columns, rows)
    report = import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=10)
    assert documents(tmp_path / "corpus") == [
        ([5, 6, 7], [0, 0, 1]),
        ([2, 3, 4], [0, 1, 1]),
        ([5, 6, 7], [0, 1, 1]),
    ]
    assert report.columns["position_ids"] == "start anew inside 1 rows, which became several documents"


def test_how_labels_stand_is_told_by_the_rows_or_by_the_user(tmp_path: Path) -> None:
    columns = {"input_ids": "int32", "labels": "int32"}
    silent = [[1, 2, 3], [-100, -100, 3]]
    for name, row, ahead in (("ahead", [[4, 5, 6], [5, 6, 7]], True), ("in-place", [[4, 5, 6], [4, 5, 6]], False)):
        mindrecord_files.write(tmp_path / name, columns, [silent, row])
        import_mindrecord(tmp_path / name, tmp_path / f"{name}.told", vocab_size=10)
        assert len(documents(tmp_path / f"{name}.told")[0][0]) == 3 + ahead
    mindrecord_files.write(tmp_path / "silent", columns, [silent])
    with pytest.raises(DataError, match=r"no row tells whether labels .*; say --labels in-place or --labels ahead"):
        import_mindrecord(tmp_path / "silent", tmp_path / "corpus", vocab_size=10)
    source, options = str(tmp_path / "silent"), ["--vocab-size", "10", "--labels"]
    assert main(["data", "import", source, "--output", str(tmp_path / "a"), *options, "ahead"]) == 0
    assert main(["data", "import", source, "--output", str(tmp_path / "b"), *options, "in-place"]) == 0
    assert documents(tmp_path / "a") == [([1, 2, 3, 3], [0, 0, 0, 1])]
    assert documents(tmp_path / "b") == [([1, 2, 3], [0, 0, 1])]


def test_labels_over_the_borders_of_documents_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stream cut into rows, with labels ahead: every id of it is there once."""
    columns = {"input_ids": "int32", "labels": "int32", "position_ids": "int32"}
    stream = [11, 12, 1, 21, 22, 23, 1, 31, 32, 33, 34, 1, 41]
    rows = [[stream[:6], stream[1:7], [0, 1, 2, 0, 1, 2]], [stream[6:12], stream[7:], [0, 1, 2, 3, 4, 5]]]
    mindrecord_files.write(tmp_path / "r", columns, rows)
    assert main(["data", "import", str(tmp_path / "r"), "--output", str(tmp_path / "c"), "--vocab-size", "100"]) == 0
    assert "left out: 2 labels that are the first token of another document" in capsys.readouterr().out
    assert documents(tmp_path / "c") == [
        ([11, 12, 1], [0, 1, 1]),
        ([21, 22, 23], [0, 1, 1]),
        ([1, 31, 32, 33, 34, 1, 41], [0, 1, 1, 1, 1, 1, 1]),
    ]
    # In place they would teach a first id from what isolated documents do not see.
    rows = [[[1, 2, 3, 4, 5, 6], [-100, 2, -100, 4, 5, 6], [0, 1, 2, 0, 1, 2]]]
    mindrecord_files.write(tmp_path / "p", columns, rows)
    assert import_mindrecord(tmp_path / "p", tmp_path / "d", vocab_size=10).crossing_labels == 1
    assert documents(tmp_path / "d") == [([1, 2], [0, 1]), ([4, 5, 6], [0, 1, 1])]


@pytest.mark.parametrize(("first", "padding"), [(2, 0), (3, 1), (3, 3)])
def test_a_last_label_that_ends_a_row_is_kept(tmp_path: Path, first: int, padding: int) -> None:
    """It is the first id of the next row too: all begin with the token that ends them, or are padded with it."""
    rows = [
        [[first, 5, 6], [5, 6, 2], [1, 1, 1]],
        [[2, 7, 8], [7, 8, 2], [1, 1, 1]],
    ]
    rows[1][1][:padding], rows[1][2][:padding] = [-100] * padding, [0] * padding
    columns = {"input_ids": "int32", "labels": "int32", "attention_mask": "int32"}
    mindrecord_files.write(tmp_path / "r", columns, rows)
    import_mindrecord(tmp_path / "r", tmp_path / "c", vocab_size=10)
    assert documents(tmp_path / "c")[0] == ([first, 5, 6, 2], [0, 1, 1, 1])


def test_labels_that_nothing_was_held_against_do_not_tell_how_they_stand(tmp_path: Path) -> None:
    """The last label of a document can be any id ahead: alone it shows nothing."""
    for columns, row in (
        (["input_ids", "labels"], [[7, 8, 9], [-100, -100, 5]]),
        (["input_ids", "labels", "position_ids"], [[7, 8, 9], [4, 5, 6], [0, 0, 0]]),
    ):
        mindrecord_files.write(tmp_path / "r", dict.fromkeys(columns, "int32"), [row] * 3)
        with pytest.raises(DataError, match="no row tells"):
            import_mindrecord(tmp_path / "r", tmp_path / "c", vocab_size=10)
        for path in tmp_path.iterdir():
            path.unlink()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            [[5, 6], [6, 7], [1, 1], [0, 1]],
            r"row 1: column 'labels' has 6 at position 0, which is not the id there \(5\)",
        ),
        ([[5, 6], [5], [1, 1], [0, 1]], r"row 1: column 'labels' has another shape than input_ids: \[1\], not \[2\]"),
        (
            [[5, 6, 7], [5, 6, 7], [1, 0, 1], [0, 1, 2]],
            "row 1: column 'attention_mask' masks position 1, which is not at",
        ),
        ([[5, 6], [5, 6], [1, 0], [0, 1]], "row 1: column 'labels' supervises position 1, which attention_mask calls"),
        ([[5, 6], [5, 6], [1, 2], [0, 1]], "row 1: column 'attention_mask' has 2 at position 1; known are 0 and 1"),
        ([[5, 6], [5, 6], [1, 1], [0, 5]], "row 1: column 'position_ids' has 5 at position 1: neither goes on nor"),
        (
            [[5, 8], [5, 8], [1, 1], [0, 1]],
            "row 1: column 'input_ids': position 1 is id 8, outside the vocabulary of 8",
        ),
        ([[-1, 0], [-1, 0], [1, 1], [0, 1]], "row 1: column 'input_ids': position 0 is id -1"),
    ],
)
def test_a_row_that_does_not_fit_is_named_and_nothing_is_written(tmp_path: Path, row: Any, message: str) -> None:
    mindrecord_files.write(tmp_path / "r", COLUMNS, [PLAIN, row])
    with pytest.raises(DataError, match=message):
        import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r.db"]


def test_masks_without_a_meaning_and_rows_without_a_label_are_refused(tmp_path: Path) -> None:
    for columns, row, message in [
        (["input_ids", "loss_mask"], [[5, 6], [0, 1]], "'loss_mask' masks positions, but there are no labels that it"),
        (
            ["input_ids", "labels", "loss_mask"],
            [[5, 6, 7], [5, 6, 7], [0, 1, 1]],
            "'loss_mask' masks positions, but labels in",
        ),
        (["input_ids", "labels"], [[5, 6], [-100, -100]], "no row tells"),
    ]:
        mindrecord_files.write(tmp_path / "r", dict.fromkeys(columns, "int32"), [row])
        with pytest.raises(DataError, match=message):
            import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=8)
        for path in tmp_path.iterdir():
            path.unlink()
    mindrecord_files.write(tmp_path / "r", {"input_ids": "int32", "labels": "int32"}, [[[5, 6], [-100, -100]]])
    with pytest.raises(DataError, match="no row supervises anything"):
        import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=8, ahead=True)


def test_labels_that_are_other_ids_are_kept_where_the_user_says_how_they_stand(records: Path, tmp_path: Path) -> None:
    source = records / "sft_two_cols.mindrecord"
    message = (
        r"row 0: column 'labels' has 15 at position 4, which is not the id there \(43\) nor the one that follows; "
        r"--labels in-place or ahead keeps labels of their own; --ignore labels"
    )
    with pytest.raises(DataError, match=message):
        import_mindrecord(source, tmp_path / "corpus", vocab_size=64)
    rows = [{name: row[name]["ndarray"] for name in row} for row in EXPECTED["sft_two_cols.mindrecord"]]
    for ahead, prefix in ((False, tmp_path / "in-place"), (True, tmp_path / "ahead")):
        report = import_mindrecord(source, prefix, vocab_size=64, ahead=ahead)
        assert (report.documents, report.supervised_tokens, report.beside) == (6, 72, ".labels")
        assert "from row 0, position 4 on: written as labels" in report.columns["labels"]
        tokens, labels = TokenDataset([prefix], 15 + ahead, vocab_size=64, align_documents=True).batch(np.arange(6))
        for number, row in enumerate(rows):
            assert tokens[number].tolist() == row["input_ids"][: 15 + ahead]
            assert labels[number].tolist() == row["labels"][1 - ahead :]
    with pytest.raises(DataError, match=r"row 0: column 'labels': position 6 is id 59, outside the vocabulary of 59"):
        import_mindrecord(source, tmp_path / "corpus", vocab_size=59, ahead=False)


def test_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Not stored as other ids, as numbers of fewer bytes would be."""
    mindrecord_files.write(tmp_path / "r", {"input_ids": "int64"}, [[[1, 3_000_000_000]]])
    message = r"a vocabulary of 8589934592 ids: token files hold ids below 2147483648"
    with pytest.raises(DataError, match=message):
        import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=2**33)
    mindrecord_files.write(tmp_path / "s", {"input_ids": "int32"}, [[[1]], [[2, 2**32 + 5]]])
    message = r"s: row 1: damaged: column 'input_ids': position 1 is 4294967301, which is no int32"
    with pytest.raises(DataError, match=message):
        import_mindrecord(tmp_path / "s", tmp_path / "corpus", vocab_size=64)
    mindrecord_files.write(tmp_path / "t", {"input_ids": "int32"}, [[[2**31 - 1]]])
    import_mindrecord(tmp_path / "t", tmp_path / "corpus", vocab_size=2**31)
    assert IndexedDataset(tmp_path / "corpus").tokens.tolist() == [2**31 - 1]


def truncate(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 160)


def overwrite(path: Path, at: int, raw: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(raw)


def set_type(kind: str) -> Callable[[Path], None]:
    def change(content: dict[str, Any]) -> None:
        content["schema"][0]["schema"]["input_ids"]["type"] = kind

    return lambda path: mindrecord_files.edit_header(path, change)


def set_number(name: str, number: float) -> Callable[[Path], None]:
    def change(content: dict[str, Any]) -> None:
        column = content["schema"][0]["schema"]["input_ids"]
        place = {"page_size": content, "page_id": content["page"][0], "shape": column}[name]
        place[name] = [number] if name == "shape" else number

    return lambda path: mindrecord_files.edit_header(path, change)


def set_blobs(names: list[Any]) -> Callable[[Path], None]:
    def change(content: dict[str, Any]) -> None:
        content["schema"][0]["blob_fields"] = names

    return lambda path: mindrecord_files.edit_header(path, change)


def drop_rows(path: Path) -> None:
    with sqlite3.connect(f"{path}.db") as index:
        index.execute("DELETE FROM INDEXES WHERE ROW_ID = 3")


def renumber(path: Path) -> None:
    with sqlite3.connect(f"{path}.db") as index:
        index.execute("UPDATE INDEXES SET ROW_ID = 99 WHERE ROW_ID = 3")


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated page": (truncate, r"lm_pretrain.mindrecord: truncated at byte 49148: page 1 ends at byte 49308"),
    "truncated header": (lambda path: path.write_bytes(path.read_bytes()[:300]), "truncated at byte 300: its header"),
    "empty": (lambda path: path.write_bytes(b""), "byte 0: no length and JSON header: not a MindRecord file"),
    "other file": (lambda path: path.write_bytes(b"PK\3\4" + bytes(9) + b"x" * 99), "not a MindRecord file"),
    "no index": (lambda path: Path(f"{path}.db").unlink(), r"lm_pretrain.mindrecord.db: no such file; it is the index"),
    "index of another kind": (lambda path: Path(f"{path}.db").write_bytes(b"x" * 99), "db: not the index of a MindRec"),
    "empty index": (lambda path: Path(f"{path}.db").write_bytes(b""), "no such table: INDEXES"),
    "index of other rows": (drop_rows, r"db: has 11 rows, but the pages of .*lm_pretrain.mindrecord hold 12"),
    "index with a gap": (renumber, "row 3: damaged: the index goes on with row 4"),
    "version 2.0": (
        lambda path: mindrecord_files.edit_header(path, lambda content: content.update(version="2.0")),
        "MindRecord version '2.0'; only '3.0' is known",
    ),
    "header without pages": (
        lambda path: mindrecord_files.edit_header(path, lambda content: content.pop("page")),
        "not a complete MindRecord header: KeyError: 'page'",
    ),
    "header of brackets": (
        lambda path: overwrite(path, 0, struct.pack("<Q", 49_000) + b'{"":' + b"[" * 49_000),
        "byte 8",
    ),
    **{
        f"{number} as {name}": (set_number(name, number), "not a complete MindRecord header: TypeError: 'float' object")
        for name in ("page_size", "page_id", "shape")
        for number in (math.inf, 1.5)
    },
    "columns of other kinds": (set_blobs([{"name": "input_ids"}]), r"stores column .* but does not describe it"),
    "pages before the file": (
        lambda path: mindrecord_files.edit_header(path, lambda content: content.update(header_size=-1)),
        "page 0 says it uses 408 bytes of 32768 from -1",
    ),
    "float ids": (set_type("float32"), r"column 'input_ids' is float32 \[-1\]; legal are int32, int64 in one"),
    "unknown type": (set_type("int8"), r"column 'input_ids' is int8"),
    "length of a row": (lambda path: overwrite(path, (16 << 10) + 34, b"\x07"), "row 1: damaged: byte 16418 gives"),
    "count of a row": (
        lambda path: overwrite(path, (16 << 10) + 8, b"\0\0\1"),
        "row 0: damaged: column 'input_ids': 26 bytes are too few for 273 integers",
    ),
    "width of a value": (
        lambda path: overwrite(path, (16 << 10) + 12, b"\x40"),
        "row 0: damaged: column 'input_ids': 26 bytes, but its 17 integers need 27",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_are_refused_and_nothing_is_written(records: Path, tmp_path: Path, kind: str) -> None:
    break_it, message = BROKEN[kind]
    break_it(records / "lm_pretrain.mindrecord")
    with pytest.raises(DataError, match=message) as refusal:
        import_mindrecord(records / "lm_pretrain.mindrecord", tmp_path / "corpus", vocab_size=64)
    assert str(records / "lm_pretrain.mindrecord") in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


@pytest.mark.parametrize(("files", "first"), [(11, "set00"), (101, "set000")])
def test_a_set_is_found_by_its_name_whatever_the_width_of_its_numbers(tmp_path: Path, files: int, first: str) -> None:
    source = tmp_path / "source"
    mindrecord_files.write(source, {"input_ids": "int32"}, [[[7]]])
    names = [f"set{number:0{len(first) - 3}}" for number in range(files)]
    for number, name in enumerate(names):
        shutil.copy(source, tmp_path / name)
        shutil.copy(f"{source}.db", tmp_path / f"{name}.db")
        edit = {"shard_addresses": names, "shard_id": number}
        mindrecord_files.edit_header(tmp_path / name, lambda content, edit=edit: content.update(edit))
    assert is_mindrecord(tmp_path / "set")
    assert open_mindrecord(tmp_path / "set").rows == files
    shutil.copy(source, tmp_path / "set0")
    with pytest.raises(DataError, match=rf"names the sets of .*set0 and of .*{first}; name a file of one of them"):
        open_mindrecord(tmp_path / "set")


def test_a_set_with_a_file_missing_or_of_another_set_is_refused(records: Path, tmp_path: Path) -> None:
    second = records / "shards.mindrecord1"
    second.write_bytes((records / "lm_pretrain.mindrecord").read_bytes())
    with pytest.raises(DataError, match=r"mindrecord1: is file 0 of \['lm_pretrain.mindrecord'\], not file 1 of"):
        import_mindrecord(records / "shards.mindrecord0", tmp_path / "corpus", vocab_size=64)
    second.unlink()
    with pytest.raises(DataError, match=r"mindrecord1: no such file; .*mindrecord0 names it as file 1 of its set"):
        import_mindrecord(records / "shards.mindrecord", tmp_path / "corpus", vocab_size=64)


def test_columns_without_a_place_and_wrong_ignores_are_refused(records: Path, tmp_path: Path) -> None:
    mindrecord_files.write(tmp_path / "r", {"input_ids": "int32", "domain": "int32"}, [[[1, 2], [7]]])
    for ignore, message in [
        ([], r"column 'domain' \(int32 \[-1\]\) is not known; .*; --ignore domain imports the others"),
        (["domian"], "cannot ignore column 'domian'"),
        (["input_ids"], "cannot ignore column 'input_ids'"),
    ]:
        with pytest.raises(DataError, match=message):
            import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=64, ignore=ignore)
    with pytest.raises(DataError, match=r"no column 'input_ids' with token ids; it has data \(bytes\), emb \(float32 "):
        import_mindrecord(records / "mixed.mindrecord", tmp_path / "corpus", vocab_size=64)


def test_prepare_points_to_import(records: Path) -> None:
    with pytest.raises(DataError, match=r"lm_pretrain.mindrecord: holds token ids already: `meshwright data import`"):
        find_files([records / "lm_pretrain.mindrecord"])


def test_an_existing_corpus_is_not_touched(records: Path, tmp_path: Path) -> None:
    import_mindrecord(records / "lm_pretrain.mindrecord", tmp_path / "corpus", vocab_size=64)
    before = (tmp_path / "corpus.bin").read_bytes()
    with pytest.raises(DataError, match=r"corpus.bin: exists already"):
        import_mindrecord(records / "multipage.mindrecord", tmp_path / "corpus", vocab_size=50257)
    assert (tmp_path / "corpus.bin").read_bytes() == before


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    row = [np.arange(1024) % 100]
    mindrecord_files.write(tmp_path / "r", {"input_ids": "int32"}, [row] * 1000)
    assert (tmp_path / "r").stat().st_size > 1 << 20
    tracemalloc.start()
    try:
        import_mindrecord(tmp_path / "r", tmp_path / "corpus", vocab_size=100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 << 10
