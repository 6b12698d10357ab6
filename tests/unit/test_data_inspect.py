"""``meshwright data inspect``: what it counts, against counts made by hand."""

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from meshwright.cli import main
from meshwright.data.errors import DataError
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.inspect import inspect_corpus
from meshwright.data.loss_mask import IGNORED, MaskWriter
from meshwright.data.own_labels import LabelWriter
from mindrecord_files import HEADER_SIZE, extract

DOCUMENTS = [[5, 6, 7, 0], [8, 0], [5, 6, 7, 0], [], [9] * 50 + [0], [5, 6, 7, 0], [8, 0]]


def write(prefix: Path, documents: list[list[int]], vocab_size: int = 12) -> Path:
    with IndexedWriter(prefix, vocab_size=vocab_size) as writer:
        for ids in documents:
            writer.add_document(np.array(ids, np.int64))
    return prefix


def write_tokenizer(prefix: Path, size: int) -> None:
    """A tokenizer whose id n is the letter n of the alphabet, and 0 the end of text."""
    vocabulary = {"</s>": 0, **{chr(96 + number): number for number in range(1, size)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Punctuation()
    tokenizer.add_special_tokens(["</s>"])
    Path(f"{prefix}.tokenizer.json").write_text(tokenizer.to_str())


def split(prefix: Path, number: int = 0) -> dict[str, Any]:
    report = inspect_corpus(prefix)
    assert json.loads(json.dumps(report)) == report
    return report["splits"][number]


def test_sizes_lengths_and_duplicates(tmp_path: Path) -> None:
    found = split(write(tmp_path / "c", DOCUMENTS))
    assert (found["documents"], found["tokens"], found["dtype"], found["bin_bytes"]) == (7, 67, "uint16", 134)
    assert (found["shortest"], found["median"], found["longest"]) == (0, 4, 51)
    assert found["mean"] == pytest.approx(67 / 7)
    assert found["duplicates"] == {"documents": 3, "most_repeated": 0, "times": 3, "also_in_train": None}


def test_held_out_documents_that_are_in_the_training_split_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "c", DOCUMENTS)
    write(tmp_path / "c.eval", [[8, 0], [8, 1, 0], [5, 6, 7, 0]])
    found = split(tmp_path / "c", 1)["duplicates"]
    assert found == {"documents": 0, "most_repeated": None, "times": 0, "also_in_train": 2}


def test_token_histogram(tmp_path: Path) -> None:
    write_tokenizer(write(tmp_path / "c", DOCUMENTS), 12)
    found = split(tmp_path / "c")
    histogram = found["histogram"]
    assert (histogram["vocab_size"], histogram["used"], histogram["outside"]) == (12, 6, 0)
    assert histogram["by_count"] == {"0": 6, "1-9": 5, "10-99": 1}
    assert histogram["ids_for_share"] == {"50%": 1, "90%": 4, "99%": 6}
    first = [(entry["id"], entry["count"], entry["text"]) for entry in found["most_frequent"][:3]]
    assert first == [(9, 50, "i"), (0, 6, "</s>"), (5, 3, "e")]
    assert len(found["most_frequent"]) == 6
    assert found["most_frequent"][0]["share"] == pytest.approx(50 / 67)


def test_ids_outside_the_vocabulary_are_told_with_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(write(tmp_path / "c", DOCUMENTS), 9)
    histogram = split(tmp_path / "c")["histogram"]
    assert (histogram["outside"], histogram["first_outside"], histogram["used"]) == (50, 10, 5)
    assert main(["data", "inspect", str(tmp_path / "c")]) == 0
    assert "WRONG: 50 tokens are outside the vocabulary of 9, first token 10" in capsys.readouterr().out


def test_sample_shows_borders_and_the_loss_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(write(tmp_path / "c", [[9] * 98 + [1, 0], [], [8] * 50 + [0]]), 12)
    runs = split(tmp_path / "c")["sample"]
    shown = [(run["document"], run["first_token"], len(run["ids"]), run["supervised"]) for run in runs]
    assert shown == [(0, 0, 1, False), (0, 1, 31, True), (0, 68, 32, True), (2, 100, 32, True)]
    assert runs[2]["ids"] == [9] * 30 + [1, 0]
    assert runs[2]["text"].replace(" ", "").endswith("iia</s>")
    assert main(["data", "inspect", str(tmp_path / "c")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("    ---- border of documents ----")
    assert lines[at - 4].startswith("    document 0, token 0, not in the loss: 'i'")
    assert lines[at - 2] == "    ..."
    assert lines[at + 1].startswith("    document 2, tokens 100 to 131, in the loss: 'h")


def write_masked(prefix: Path, prompts: list[int], answers: list[int]) -> Path:
    """Documents of a prompt of 1s, which is not supervised, and an answer of 2s, which is."""
    with IndexedWriter(prefix, vocab_size=12, beside=MaskWriter) as writer:
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = np.array([1] * prompt + [2] * answer, np.int64)
            writer.add_document(ids, np.where(ids == 2, ids, IGNORED))
    return prefix


def test_a_loss_mask_is_counted_and_its_first_answer_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(write_masked(tmp_path / "c", [100, 7, 3], [40, 0, 5]), 12)
    assert split(tmp_path / "c")["supervision"] == {"tokens": 45, "documents_without": 1}
    assert main(["data", "inspect", str(tmp_path / "c")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  loss mask: 45 tokens are supervised (29.0%); 1 documents have none" in lines
    sample = [line.strip().split(": ")[0] for line in lines[lines.index("  sample, as training reads it:") + 1 :]]
    assert sample == [
        "document 0, tokens 0 to 31, not in the loss",
        "...",
        "document 0, tokens 68 to 99, not in the loss",
        "document 0, tokens 100 to 139, in the loss",
        "---- border of documents ----",
        "document 1, tokens 140 to 146, not in the loss",
        "---- border of documents ----",
        "document 2, tokens 147 to 149, not in the loss",
        "document 2, tokens 150 to 154, in the loss",
    ]


def test_labels_of_their_own_are_shown_beside_the_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with IndexedWriter(tmp_path / "c", vocab_size=12, beside=LabelWriter) as writer:
        writer.add_document(np.array([1, 2, 3, 4, 5, 6]), np.array([IGNORED, IGNORED, 9, 8, 5, 6]))
    found = split(tmp_path / "c")
    assert (found["beside"], found["supervision"]["tokens"]) == (".labels", 4)
    assert [(run["first_token"], run["supervised"], run["labels"]) for run in found["sample"]] == [
        (0, False, None),
        (2, True, [9, 8]),
        (4, True, None),
    ]
    for tokens, shown in (("[3, 4]", "[9, 8]"), ("' c d'", "' i h'")):
        assert main(["data", "inspect", str(tmp_path / "c")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "  labels: 4 tokens are supervised (66.7%); 0 documents have none" in lines
        assert f"    document 0, tokens 2 to 3, in the loss: {tokens} with labels {shown}" in lines
        write_tokenizer(tmp_path / "c", 12)


@pytest.mark.parametrize(("prompts", "answers"), [([], []), ([0], [0]), ([5], [0]), ([0], [1]), ([40, 1], [0, 0])])
def test_masks_that_leave_nothing(tmp_path: Path, prompts: list[int], answers: list[int]) -> None:
    found = split(write_masked(tmp_path / "c", prompts, answers))
    without = sum(not answer for answer in answers)
    assert found["supervision"] == {"tokens": sum(answers), "documents_without": without}
    assert not any(run["supervised"] for run in found["sample"])
    assert main(["data", "inspect", str(tmp_path / "c")]) == 0


def test_a_mask_that_leaves_only_the_first_token_leaves_nothing_to_predict(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "c", vocab_size=12, beside=MaskWriter) as writer:
        writer.add_document(np.array([1, 2, 3]), np.array([1, IGNORED, IGNORED]))
    assert [run["supervised"] for run in split(tmp_path / "c")["sample"]] == [False]


def test_a_mask_whose_bits_are_not_those_of_its_header_is_refused(tmp_path: Path) -> None:
    write_masked(tmp_path / "c", [9], [9])
    path = tmp_path / "c.mask"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(DataError, match=r"c.mask: damaged: 7 tokens are supervised, but its header says 9"):
        inspect_corpus(tmp_path / "c")


@pytest.mark.parametrize("documents", [[], [[]], [[3]]])
def test_the_smallest_corpora(tmp_path: Path, documents: list[list[int]], capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "c", documents)
    found = split(tmp_path / "c")
    assert (found["documents"], found["tokens"]) == (len(documents), sum(map(len, documents)))
    assert [run["supervised"] for run in found["sample"]] == [False] * found["tokens"]
    assert main(["data", "inspect", str(tmp_path / "c")]) == 0
    assert "0 documents repeat an earlier one" in capsys.readouterr().out


def test_mindrecord_files_are_shown_before_they_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extract(tmp_path)
    assert main(["data", "inspect", str(tmp_path / "shards.mindrecord"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [file["rows"] for file in report["files"]] == [3, 4]
    assert report["first_row"] == {"input_ids": [0, 1, 2, 3, 4]}
    assert main(["data", "inspect", str(tmp_path / "mixed.mindrecord")]) == 0
    assert "column data: bytes, first row: 00" in capsys.readouterr().out
    (tmp_path / "mixed.mindrecord").write_bytes(b"")
    assert main(["data", "inspect", str(tmp_path / "mixed.mindrecord")]) == 2
    assert "not a MindRecord file" in capsys.readouterr().err


def test_mindrecord_values_that_json_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = extract(tmp_path) / "mixed.mindrecord"
    raw = bytearray(path.read_bytes())
    score = raw.index(b"score\xca", HEADER_SIZE) + 6
    raw[score : score + 4] = struct.pack(">f", math.nan)
    emb = HEADER_SIZE + 25
    raw[emb : emb + 8] = struct.pack("<2f", math.inf, math.nan)
    path.write_bytes(raw)
    assert main(["data", "inspect", str(path), "--json"]) == 0
    first = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["first_row"]
    assert (first["score"], first["emb"][:2]) == (None, [None, None])
    assert None not in first["emb"][2:]
    raw[raw.index(b"label", HEADER_SIZE) + 5] = 0x90  # an empty list
    path.write_bytes(raw)
    assert main(["data", "inspect", str(path), "--json"]) == 2
    assert "mixed.mindrecord: row 0: damaged: column 'label': list is no type" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["lm_pretrain.mindrecord", "shards.mindrecord"])
def test_of_mindrecord_files_the_missing_one_is_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    extract(tmp_path)
    for path in tmp_path.glob("*.db"):
        path.unlink()
    assert main(["data", "inspect", str(tmp_path / name)]) == 2
    assert "db: no such file; it is the index of" in capsys.readouterr().err


def test_a_file_of_another_kind_is_no_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "c", DOCUMENTS)
    assert main(["data", "inspect", str(tmp_path / "c.bin")]) == 0
    (tmp_path / "c").write_text("some text\n")
    assert main(["data", "inspect", str(tmp_path / "c")]) == 0
    (tmp_path / "c.idx").unlink()
    assert main(["data", "inspect", str(tmp_path / "c")]) == 2
    assert "c: neither a MindRecord file nor a corpus, which is named without .bin" in capsys.readouterr().err
    (tmp_path / "c").unlink()
    assert main(["data", "inspect", str(tmp_path / "c")]) == 2
    assert "c.idx: no such file" in capsys.readouterr().err


COUNTS = {"documents": 7, "tokens": 67, "utf8_bytes": 60}
RECORD = {"format": "meshwright-corpus", "version": 1, "vocab_size": 12, "dtype": "uint16", "eos_id": 0}
RECORD |= {"eos_token": "<e>", "tokenizer_sha256": "0", "eval_fraction": 0, "train": COUNTS, "eval": COUNTS}
RECORD |= {"files": 1, "dropped": {"empty": 1}, "invalid_utf8": 0, "inputs": [os.fsdecode(b"caf\xe9.txt")]}


def test_a_record_is_shown_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "c", DOCUMENTS)
    (tmp_path / "c.json").write_text(json.dumps(RECORD))
    record = inspect_corpus(tmp_path / "c")["record"]
    assert json.loads(json.dumps(record)) == RECORD


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": "300"}, "vocab_size: must be a whole number, not '300'"),
        ({"vocab_size": True}, "vocab_size: must be a whole number, not True"),
        ({"vocab_size": -1}, "vocab_size: must be 1 to 65536 where ids are uint16, not -1"),
        ({"vocab_size": 2**31 + 1, "dtype": "int32"}, "vocab_size: must be 1 to 2147483648 where ids are int32, not"),
        ({"dtype": ""}, "dtype: must be uint16 or int32, not ''"),
        ({"eos_token": [1]}, "eos_token: must be a string, not [1]"),
        ({"eos_id": 12}, "eos_id: 12 is no id of a vocabulary of 12"),
        ({"train": COUNTS | {"tokens": "67"}}, "train.tokens: must be a whole number, not '67'"),
        ({"eval": 5}, "eval: must be an object, not 5"),
        ({"dropped": {"empty": None}}, "dropped.empty: must be a whole number, not None"),
        ({"inputs": "x"}, "inputs: must be a list, not 'x'"),
        ({"inputs": ["x", 1]}, "inputs.1: must be a string, not 1"),
        ({"other": 1}, "other: no such key is known"),
    ],
)
def test_a_record_with_a_wrong_value_is_refused_by_its_key(
    tmp_path: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "c", DOCUMENTS)
    (tmp_path / "c.json").write_text(json.dumps(RECORD | changes))
    assert main(["data", "inspect", str(tmp_path / "c")]) == 2
    assert f"c.json: {message}" in capsys.readouterr().err


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    path = Path(f"{write(tmp_path / 'c', DOCUMENTS)}.idx")
    raw = bytearray(path.read_bytes())
    raw[34] += 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"c.idx: sequence 1: starts at byte"):
        inspect_corpus(tmp_path / "c")
