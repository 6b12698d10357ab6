"""Files to documents: which files, in which order, and what happens to odd ones."""

from pathlib import Path

import pytest

from meshwright.data.corpus import Part, Tally, find_files, read_parts
from meshwright.data.errors import DataError
from meshwright.data.text import decode, is_held_out, repair


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def read(*files: Path, text_key: str = "text") -> tuple[list[str], Tally]:
    tally = Tally()
    parts = [Part(path) for path in files]
    return [source.text for source in read_parts(parts, text_key=text_key, tally=tally)], tally


def test_directories_are_searched_through_in_sorted_order(tmp_path: Path) -> None:
    make(tmp_path, "b/z.txt", "b/a.txt", "a.jsonl", "c.txt", "b/skip.py", "b/deep/x.txt")
    names = [str(path.relative_to(tmp_path)) for path in find_files([tmp_path])]
    assert names == ["a.jsonl", "b/a.txt", "b/deep/x.txt", "b/z.txt", "c.txt"]
    assert [path.name for path in find_files([tmp_path], ["py"])] == ["skip.py"]
    assert len(find_files([tmp_path], [".py", ".txt"])) == 5


def test_files_and_patterns_keep_the_given_order_and_come_once(tmp_path: Path) -> None:
    make(tmp_path, "b.txt", "a.txt", "note.md", "sub/c.txt")
    inputs = [tmp_path / "note.md", f"{tmp_path}/**/*.txt", tmp_path]
    assert [path.name for path in find_files(inputs)] == ["note.md", "a.txt", "b.txt", "c.txt"]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("gone", r"gone: no such file or directory"),
        ("*.csv", r"\*\.csv: the pattern matches nothing"),
        ("code", r"code: no file ends in \.txt, \.jsonl or \.parquet; it has \.py \(2\): choose with --suffix"),
        ("empty", r"empty: no file ends in \.txt, \.jsonl or \.parquet$"),
        ("data.tar.gz", r"data\.tar\.gz: \.tar\.gz files are not read; give text, \.jsonl"),
    ],
)
def test_inputs_without_documents_are_refused(tmp_path: Path, item: str, message: str) -> None:
    make(tmp_path, "code/a.py", "code/b.py", "data.tar.gz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        find_files([f"{tmp_path}/{item}"])


def test_jsonl_rows_are_documents_and_other_files_are_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one\\ntwo"}\n\n{"body": "three", "id": 3}')
    (tmp_path / "b.py").write_text("x = 1\r\ny = 2\n", newline="")
    texts, tally = read(tmp_path / "a.jsonl", tmp_path / "b.py", text_key="body")
    assert texts == ["one\ntwo", "three", "x = 1\r\ny = 2\n"]
    assert tally == Tally(documents=3, bytes_read=(tmp_path / "a.jsonl").stat().st_size + 13)


def test_empty_documents_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": " \\n\\t"}\n{"text": "x"}\n')
    (tmp_path / "b.txt").write_bytes(b"")
    texts, tally = read(tmp_path / "a.jsonl", tmp_path / "b.txt")
    assert (texts, tally.documents, tally.empty) == (["x"], 1, 3)


def test_bad_utf8_is_replaced_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 ol\xc3\xa9")
    (tmp_path / "b.txt").write_bytes("\ufeffgr\u00fc\u00df dich".encode())
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "bad \xff byte"}\n{"text": "lone \\ud83d half"}\n')
    texts, tally = read(tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.jsonl")
    assert texts == ["caf\ufffd ol\u00e9", "gr\u00fc\u00df dich", "bad \ufffd byte", "lone \ufffd half"]
    assert (tally.documents, tally.invalid_utf8) == (4, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", r"a\.jsonl:2: not valid JSON"),
        ("[1]", r"a\.jsonl:2: a JSON object is needed, found list"),
        ('{"body": "x", "id": 1}', r"a\.jsonl:2: no key 'text'; it has 'body', 'id' \(--text-key\)"),
        ('{"text": 5}', r"a\.jsonl:2: 'text' is int, not text"),
    ],
)
def test_wrong_rows_are_refused_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.jsonl")


def test_decode_and_repair_leave_good_text_alone() -> None:
    text = "a\u00e9\U0001f600\x00\r\n"
    assert decode(text.encode()) == (text, False)
    assert repair(text) == (text, False)


def test_held_out_share_is_close_and_a_document_never_changes_sides() -> None:
    texts = [f"document {number}".encode() for number in range(20_000)]
    small = {text for text in texts if is_held_out(text, 0.02)}
    large = {text for text in texts if is_held_out(text, 0.1)}
    # Binomial: standard deviations 20 and 42.
    assert abs(len(small) - 400) < 6 * 20
    assert abs(len(large) - 2000) < 6 * 42
    assert small < large
    assert not any(is_held_out(text, 0.0) for text in texts)
