"""Reading inputs: which files of a directory, lines that end up the same on both ways, and what is not installed."""

import glob
import gzip
import json
import os
import random
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import ipc, parquet

from meshwright.data.corpus import Part, Tally, find_files, find_inputs, read_parts
from meshwright.data.errors import DataError
from meshwright.data.inputs import jsonl
from meshwright.data.inputs.part import MAX_DOCUMENT_BYTES
from meshwright.data.inputs.walk import matches
from meshwright.data.preparation.documents import rewritten
from meshwright.data.preparation.shards import Shard

ROWS = (
    b'{"text": "a\\u00e9\\n\\ud83d\\ude00 \xc3\xa9", "id": -12.5e+3, "x": [null, {"text": ""}], "y": "\\\\\\"\\/"}',
    b'{"a": {"text": "no"}, "text": "yes", "text2": "no"}',
    b'  {"text"\t:\r"q"  , "n" : 0 } ',
)
PIECES = b'"|\\|{|}|[|]|,|:|\\u|d83d|0|1|-|e|.|NaN|null|true|\xff|\xc3| |\t|\0|text|"text"|Infinity'.split(b"|")


def read(path: Path, tally: Tally, text_key: str = "text") -> list[str]:
    return [source.text for source in read_parts([Part(path)], text_key=text_key, tally=tally)]


def outcome(path: Path) -> tuple[object, ...]:
    tally = Tally()
    try:
        return read(path, tally), tally
    except DataError as error:
        return str(error), None


def test_the_fast_way_through_a_line_gives_what_json_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    paths = []
    for number in range(600):
        line = bytearray(rng.choice(ROWS))
        for _ in range(rng.choice((0, 1, 1, 2))):
            at = rng.randrange(len(line))
            line[at : at + rng.randrange(3)] = rng.choice((b"", *PIECES))
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_bytes(line)
    fast = [outcome(path) for path in paths]

    def refuse(raw: bytes) -> None:
        raise ValueError

    monkeypatch.setattr(jsonl, "_decoder", lambda text_key: refuse)
    assert fast == [outcome(path) for path in paths]
    read = sum(tally is not None for _, tally in fast)
    assert 100 < read < 500


@pytest.mark.parametrize("key", ['a"b', "a\\b", "a\nb", "\ud800", "", "caf\u00e9"])
def test_a_key_may_have_any_characters(tmp_path: Path, key: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "no", key: "yes"}))
    assert read(path, Tally(), key) == ["yes"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_key_with_a_dot_is_the_column_of_that_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    table = pyarrow.table({"a": [{"b": "no"}], "a.b": ["yes"], "c": ["too"], "c.d": ["no"]})
    if suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    assert read(path, Tally(), "a.b") == ["yes"]
    assert read(path, Tally(), "c") == ["too"]


def test_directories_yield_what_is_text(tmp_path: Path) -> None:
    names = [
        "a.txt",
        "b.jsonl.gz",
        "c.txt.zst",
        "d.json",
        "e.json.gz",
        "f.parquet",
        "g.arrow",
        "h.py",
        "i.py.gz",
        ".j.txt",
    ]
    for name in (*names, ".hidden/k.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [path.name for path in find_files([tmp_path])]
    assert found == ["a.txt", "b.jsonl.gz", "c.txt.zst", "e.json.gz", "f.parquet"]
    assert [path.name for path in find_files([tmp_path], ["py", ".arrow"])] == ["g.arrow", "h.py", "i.py.gz"]


def test_patterns_go_through_each_directory_once(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    for name in ("a.jsonl", "below/b.jsonl", "below/c.txt", ".hidden/d.jsonl", "below/.e.jsonl"):
        (loop / name).parent.mkdir(parents=True, exist_ok=True)
        (loop / name).touch()
    for name in ("one", "two", "below/up"):
        (loop / name).symlink_to(loop)
    inside = [loop / "a.jsonl", loop / "below" / "b.jsonl"]
    assert find_files([loop], [".jsonl"]) == inside
    for pattern in ("**/*.jsonl", "**/**/*.jsonl", "**/below/**/*.jsonl", "t*/**/*.jsonl"):
        found = find_files([loop / pattern])
        assert sorted(path.resolve() for path in found) == inside
    assert find_files([loop / "**"]) == [*inside, loop / "below" / "c.txt"]


def test_patterns_match_what_those_of_a_shell_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b/a.txt", "b/c/a.txt", "b/c/d/a.md", "b/b/a.txt", ".b/a.txt", "[b]/a.txt", "b.txt/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    patterns = (
        "**/*.txt",
        "b/**/a.*",
        "**/c/**/a.*",
        "**/c/a.txt",
        "*",
        "b/*/a.txt",
        ".b/**/a.txt",
        "b/**/",
        "b**/*.txt",
    )
    for pattern in (*patterns, *(f"{tmp_path}/{pattern}" for pattern in patterns)):
        found = [os.path.normpath(match) for match in matches(pattern)]
        assert found == sorted(os.path.normpath(match) for match in glob.glob(pattern, recursive=True))


def test_a_file_counts_by_its_first_name(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("a")
    second.hardlink_to(first)
    assert find_files([tmp_path]) == [first]
    assert find_files([second, tmp_path]) == [second]


def test_files_that_may_be_no_text_are_told_of(tmp_path: Path) -> None:
    for name in ("a.txt", "b.png", "c.lz4", "d.png", "e.JSONL.gz", "f.arrow"):
        (tmp_path / name).write_text(name)
    assert find_inputs([tmp_path / "*"]).notes == [
        f"read as plain text: .png (2), .lz4 (1); the first is {tmp_path}/b.png"
    ]
    assert find_inputs([tmp_path], [".png"]).notes == []
    for raw, kind in ((b"\x89PNG\r\n\x1a\nabcd", "PNG"), (b"\x04\x22\x4d\x18abcd", "lz4")):
        (tmp_path / "b.png").write_bytes(raw)
        with pytest.raises(DataError, match=f"holds {kind} data, not text"):
            read(tmp_path / "b.png", Tally())


def test_rows_are_rows_whatever_their_suffix(tmp_path: Path) -> None:
    names = ("a.JSONL", "b.ndjson", "c.Jsonlines", "d.NDJSON.GZ")
    for name in names:
        raw = b'{"text": "one"}\n{"text": "two"}\n'
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("GZ") else raw)
        assert read(*find_files([tmp_path / name]), Tally()) == ["one", "two"]
    (tmp_path / "e.TXT.gz").touch()
    assert [path.name for path in find_files([tmp_path])] == ["a.JSONL", "e.TXT.gz"]
    (tmp_path / "x.PARQUET.Gz").touch()
    with pytest.raises(DataError, match=r"x\.PARQUET\.Gz: \.parquet\.gz files are not read"):
        find_files([tmp_path / "x.PARQUET.Gz"])


def test_saved_datasets_below_a_directory_yield_their_data(tmp_path: Path) -> None:
    (tmp_path / "sub" / "saved").mkdir(parents=True)
    for name in ("cache-1.arrow", "data-00000-of-00001.arrow", "notes.txt", "dataset_info.json"):
        (tmp_path / "sub" / "saved" / name).touch()
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (tmp_path / "sub" / "saved" / "state.json").write_text(json.dumps(state))
    (tmp_path / "sub" / "z.txt").touch()
    assert [path.name for path in find_files([tmp_path])] == ["data-00000-of-00001.arrow", "z.txt"]
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "sub" / "saved" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="saved: its rows are a selection that is kept as indices"):
        find_files([tmp_path])


def test_lines_of_unpacked_text_are_counted_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 100_000) + gzip.compress(b"\nno\n"))
    with pytest.raises(DataError, match=r"a\.jsonl\.gz:100002: not valid JSON"):
        read(path, Tally())


def test_a_text_just_short_enough_gets_from_stage_to_stage(tmp_path: Path) -> None:
    # As JSON each of its characters takes two bytes.
    text = "x" + "\n" * (MAX_DOCUMENT_BYTES // 2)
    path = tmp_path / "000000.jsonl"
    path.write_bytes(b'{"text": "x' + rb"\n" * (MAX_DOCUMENT_BYTES // 2) + b'"}\n')
    tally = Tally()
    assert list(read_parts([Part(path)], text_key="text", tally=tally)) == []
    assert tally.too_long == 1
    documents = rewritten([Shard(0, (), 0)], [path])
    assert [source.text == text for source in documents.reader(documents.shards[0], Tally())] == [True]


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("a.parquet", "pyarrow"),
        ("a.arrow", "pyarrow"),
        pytest.param(
            "a.txt.zst",
            "backports",
            marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has it itself"),
        ),
    ],
)
def test_packages_that_are_not_installed_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    (tmp_path / name).write_bytes(b"any")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=rf"{name}: .* need another package: pip install 'meshwright\[data\]'"):
        read(tmp_path / name, Tally())


def test_the_package_for_lines_is_told_of_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    monkeypatch.setitem(sys.modules, "msgspec", None)
    jsonl._decoder.cache_clear()
    with pytest.raises(DataError, match=r"the package `msgspec` is not installed: pip install 'meshwright\[train\]'"):
        read(tmp_path / "a.jsonl", Tally())
