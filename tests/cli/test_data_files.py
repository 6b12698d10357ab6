"""docs/data-files.md: each of its files is made, and has the outcome that the page says."""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import nasty_files
import pyarrow
import pytest
from documents import ROOT
from pyarrow import ipc

from meshwright.cli import main
from meshwright.data.corpus import Part, Tally, find_files, read_parts
from meshwright.data.errors import DataError
from meshwright.data.inputs import plain
from meshwright.data.preparation.documents import read_shard
from meshwright.data.preparation.shards import plan_shards
from meshwright.data.vocabulary.tokenizer import train_tokenizer

PAGE = ROOT / "docs" / "data-files.md"
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| [^|]+ \| (?P<code>\d) \| (?P<outcome>.+) \|$", re.MULTILINE)
# Tokenizing 65 MiB would take most of the time of all tests here.
ONLY_READ = {"many-lines.txt", "one-line.txt", "bomb.txt.gz"}


class Row(NamedTuple):
    name: str
    code: int
    outcome: str


ROWS = [
    Row(match["name"], int(match["code"]), match["outcome"].replace(r"\|", "|"))
    for match in ROW.finditer(PAGE.read_text("utf-8"))
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(train_tokenizer(["a"], 257).body)
    return path


def test_the_page_lists_every_file_that_is_made() -> None:
    assert [row.name for row in ROWS if len(row.outcome) < 3] == []
    made = [*nasty_files.CONTENT, *nasty_files.TABLES, *nasty_files.OTHERS]
    assert sorted(row.name for row in ROWS) == sorted(made)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_file_has_the_outcome_that_the_page_says(
    row: Row, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, fine, output = tmp_path / "in", tmp_path / "fine.txt", tmp_path / "out" / "corpus"
    folder.mkdir()
    fine.write_text("fine")
    inputs = nasty_files.make(folder, row.name)
    if row.name in ONLY_READ:
        assert row.outcome == f"{len(read(inputs)[0])} documents"
        return
    options = ["--tokenizer", tokenizer, "--eval-fraction", 0, "--workers", 0, "--json"]
    code = main([str(word) for word in ("data", "prepare", fine, *inputs, "--output", output, *options)])
    printed = capsys.readouterr()
    assert code == row.code, printed.err
    if code:
        last = printed.err.splitlines()[-1]
        assert last.startswith("meshwright data prepare: ")
        assert row.outcome.strip("`") in last
        assert list(output.parent.glob("corpus*")) == []
    else:
        check_record(json.loads(printed.out), inputs, row.outcome)


def check_record(record: dict, inputs: list[Path], outcome: str) -> None:
    texts, tally = read(inputs)
    assert tally.documents == len(texts) == record["train"]["documents"] - 1
    assert record["train"]["utf8_bytes"] == len("".join([*texts, "fine"]).encode())
    counts = {**record["dropped"], "repaired": record["invalid_utf8"]}
    words = [f", {count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    shown, _, counted = outcome.removeprefix("`").partition("`")
    assert counted == "".join(words)
    assert json.loads(shown) == texts
    assert len(record["report"]["notes"]) == bool(tally.too_long)


def read(inputs: list[Path]) -> tuple[list[str], Tally]:
    tally = Tally()
    parts = [Part(path) for path in find_files(inputs)]
    return [source.text for source in read_parts(parts, text_key="text", tally=tally)], tally


def test_texts_and_rows_are_the_same_however_files_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MAX_DOCUMENT_BYTES", 3000)
    monkeypatch.setattr(plain, "PIECE_BYTES", 1000)
    lines = "".join(f"line {number} \u4e2d\u6587\n" for number in range(300))
    rest = "\u4e2d" * 2000 + "word " * 1000
    for name, text in {"lines.txt": lines, "rest.txt": rest, "mixed.txt": lines + rest + lines}.items():
        (tmp_path / name).write_text(text, "utf-8", newline="")
        files, whole = [tmp_path / name], None
        for size in (1, 1000, 2500, 10**6):
            monkeypatch.setattr("meshwright.data.preparation.shards.SHARD_BYTES", size)
            parts = [piece for shard in plan_shards(files) for piece in shard.parts]
            found = list(read_parts(parts, text_key="text", tally=Tally()))
            assert whole in (None, found)
            whole = found
        assert whole is not None
        assert "".join(source.text for source in whole) == text
        assert not any(source.repaired for source in whole)
        assert all(len(source.text.encode()) < 2000 for source in whole)
        assert [source.at for source in whole][:2] == [0, len(whole[0].text.encode())]
        if name == "lines.txt":
            assert all(source.text.endswith("\n") for source in whole)


def test_the_command_tells_of_texts_that_it_cuts(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plain, "MAX_DOCUMENT_BYTES", 3000)
    monkeypatch.setattr(plain, "PIECE_BYTES", 1000)
    (tmp_path / "lines.txt").write_text("line\n" * 1000)
    words = ("data", "prepare", tmp_path / "lines.txt", "--output", tmp_path / "out", "--tokenizer", tokenizer)
    assert main([*map(str, words), "--workers", "0", "--eval-fraction", "0"]) == 0
    printed = capsys.readouterr().out
    assert "train: 5 documents" in printed
    assert f"note: over 64 MiB and cut into documents: {tmp_path / 'lines.txt'} (5)" in printed


def test_tables_are_cut_between_groups_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "rows.parquet", tmp_path / "rows.arrow"):
        nasty_files.write_rows(path)
        for size, count in ((10**6, 1), (1, 3)):
            monkeypatch.setattr("meshwright.data.preparation.shards.SHARD_BYTES", size)
            shards = plan_shards([path])
            assert len(shards) == count
            assert sum(shard.size for shard in shards) == pytest.approx(path.stat().st_size, rel=0.2)
            found = [read_parts(shard.parts, text_key="text", tally=Tally()) for shard in shards]
            rows = [(source.at, source.text) for sources in found for source in sources]
            assert rows == [(number, f"row {number}") for number in range(300)]


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary", "null"])
def test_columns_of_every_kind_of_text(tmp_path: Path, kind: str) -> None:
    texts = [None, None] if kind == "null" else ["a", None, "text that is not short \u4e2d", "a"]
    column = pyarrow.array(texts)
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(getattr(pyarrow, kind)())
    path = tmp_path / "a.arrow"
    with ipc.new_file(path, pyarrow.schema([("text", column.type)])) as writer:
        writer.write_table(pyarrow.table({"text": column}))
    found, tally = read([path])
    assert found == [text for text in texts if text]
    assert tally.empty == texts.count(None)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_tables_with_changed_bytes_are_read_or_refused(tmp_path: Path, suffix: str) -> None:
    rng = random.Random(0)
    path = tmp_path / f"rows{suffix}"
    nasty_files.write_rows(path)
    rows = path.read_bytes()
    refused = []
    for _ in range(200):
        changed = bytearray(rows)
        for _ in range(rng.choice((1, 2, 5, 20))):
            changed[rng.randrange(len(rows))] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            assert len(read([path])[0]) <= 300
        except DataError as error:
            refused.append(str(error))
    assert all(message.startswith(str(path)) for message in refused)
    assert 50 < len(refused) < 200


def test_files_that_change_while_they_are_read(tmp_path: Path) -> None:
    rows, text = tmp_path / "rows.jsonl", tmp_path / "text.txt"
    for path in (rows, text):
        path.write_bytes(nasty_files.GOOD)
    (shard,) = plan_shards([rows, text])
    parts = shard.parts
    assert len(list(read_shard(shard, "text", Tally()))) == 3
    for path in (rows, text):
        path.write_bytes(nasty_files.GOOD * 2)
    texts = [source.text for source in read_parts(parts, text_key="text", tally=Tally())]
    assert texts == ["a", "b", nasty_files.GOOD.decode() * 2]
    with pytest.raises(DataError, match=r"rows\.jsonl: has changed since this command began; run it again"):
        list(read_shard(shard, "text", Tally()))
    os.truncate(rows, 14)
    with pytest.raises(DataError, match=r"rows\.jsonl: has become shorter: 28 bytes when the work began, now 14"):
        list(read_parts(parts, text_key="text", tally=Tally()))
    text.unlink()
    with pytest.raises(DataError, match=r"text\.txt: cannot be read: No such file or directory"):
        list(read_parts(parts[1:], text_key="text", tally=Tally()))


READ_AND_CUT = """
import os, sys
from pathlib import Path
from meshwright.data.corpus import Part, Tally, read_parts
path = Path(sys.argv[1])
for source in read_parts([Part(path)], text_key="text", tally=Tally()):
    os.truncate(path, 100_000)
"""


def test_a_table_that_is_cut_while_it_is_read_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    table = pyarrow.table({"text": ["a" * 2000] * 400})
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=200)
    size = path.stat().st_size
    # In a process of its own: one that looks at what is gone of a map is ended by the system.
    command = [sys.executable, "-c", READ_AND_CUT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expected = f"{path}: has become shorter: {size} bytes when the work began, now 100000"
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (1, [f"meshwright.data.errors.DataError: {expected}"])


def test_what_several_shards_left_out_is_told_once() -> None:
    total = Tally()
    for number in range(7):
        tally = Tally(documents=2, pieces=Counter({"a.txt": 2}))
        tally.leave_out(f"b.jsonl, byte {number}", 68_200_000)
        total.merge(Tally.from_json(json.loads(json.dumps(tally.as_json()))))
    assert (total.documents, total.too_long, total.pieces) == (14, 7, {"a.txt": 14})
    places = ", ".join(f"b.jsonl, byte {number} (68.2 MB)" for number in range(5))
    assert total.notes() == (
        f"over 64 MiB and left out: {places}, ...",
        "over 64 MiB and cut into documents: a.txt (14)",
    )
