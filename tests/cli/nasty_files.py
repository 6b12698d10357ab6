"""Makes the inputs that docs/data-files.md lists: files that are broken, odd, or too big."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow
from pyarrow import ipc, parquet

from meshwright.data.inputs.streams import zstd_package

zstd = zstd_package(Path("any.zst"))
MARK = b"\xef\xbb\xbf"
GOOD = b'{"text": "a"}\n{"text": "b"}\n'
LONG = 65 << 20
ROWS = pyarrow.table({"id": list(range(300)), "text": [f"row {number}" for number in range(300)]})

CONTENT = {
    "empty.txt": b"",
    "only-mark.txt": MARK,
    "mark.txt": MARK + b"a",
    "utf-16.txt": "abc".encode("utf-16"),
    "utf-16-no-mark.txt": "abc".encode("utf-16-le"),
    "latin-1.txt": b"caf\xe9",
    "overlong.txt": b"a\xc0\xafb",
    "surrogate-bytes.txt": b"a\xed\xa0\x80b",
    "white-space.txt": " \r\n\t\u3000".encode(),
    "control.txt": b"a\0\x07\x1b[0mb",
    "end-of-text.txt": b"a<|endoftext|>b",
    "line-ends.txt": b"a\r\nb\rc\n",
    "gzip-inside.txt": gzip.compress(b"a"),
    "two-marks.jsonl": MARK + GOOD + MARK + GOOD,
    "only-mark.jsonl": MARK,
    "utf-16.jsonl": GOOD.decode().encode("utf-16"),
    "latin-1.jsonl": b'{"text": "caf\xe9"}\n{"text": "a", "author": "Andr\xe9"}\n',
    "blank-lines.jsonl": b"\n" + GOOD.replace(b"\n", b"\n \t\r\n\n"),
    "no-last-line-end.jsonl": GOOD.rstrip(),
    "crlf.jsonl": GOOD.replace(b"\n", b"\r\n"),
    "cr-only.jsonl": GOOD.replace(b"\n", b"\r"),
    "line-separator.jsonl": '{"text": "a\u2028b\u0085c"}\n'.encode(),
    "nul.jsonl": GOOD + b'{"text": "a\0b"}\n',
    "escaped-nul.jsonl": b'{"text": "a\\u0000b"}\n',
    "surrogates.jsonl": b'{"text": "a\\ud83d"}\n{"text": "\\ud83d\\ude00"}\n{"text": "\\udc00b"}\n',
    "same-key-twice.jsonl": b'{"text": "a", "text": "b"}\n{"text": 1, "text": "c"}\n',
    "nan.jsonl": b'{"score": NaN, "text": "a", "rest": [-Infinity]}\n',
    "huge-number.jsonl": b'{"id": ' + b"9" * 5000 + b', "score": 1e99999, "text": "a"}\n',
    "deep.jsonl": b'{"text": "a", "rest": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "cut.jsonl": GOOD + b'{"text": "c',
    "two-in-a-line.jsonl": b'{"text": "a"} {"text": "b"}\n',
    "list.jsonl": b'[{"text": "a"}]\n',
    "python.jsonl": b"{'text': 'a'}\n",
    "number.jsonl": GOOD + b'{"text": 5}\n',
    "null.jsonl": b'{"text": null}\n' + GOOD,
    "similar-key.jsonl": b'{"Text": "a", "text ": "b", "": "c"}\n',
    "members.jsonl.gz": gzip.compress(GOOD) + gzip.compress(GOOD),
    "zeros-at-end.jsonl.gz": gzip.compress(GOOD) + bytes(1000),
    "more-at-end.jsonl.gz": gzip.compress(GOOD) + b"more",
    "empty.jsonl.gz": b"",
    "cut.jsonl.gz": gzip.compress(GOOD)[:-9],
    "cut-header.json.gz": gzip.compress(GOOD)[:5],
    "checksum.json.gz": gzip.compress(GOOD)[:-8] + b"abcd" + gzip.compress(GOOD)[-4:],
    "text-inside.txt.gz": b"only text",
    "frames.jsonl.zst": zstd.compress(GOOD) + zstd.compress(GOOD),
    "cut.json.zst": zstd.compress(GOOD)[:-3],
    "empty.txt.zst": b"",
    "damaged.jsonl.zst": zstd.compress(GOOD)[:6] + b"\xff\xff\xff" + zstd.compress(GOOD)[9:],
    "text-inside.txt.zst": b"only text",
    "wide-window.jsonl.zst": b"\x28\xb5\x2f\xfd\x00\x98" + zstd.compress(GOOD)[6:],
    "archive.tar.gz": gzip.compress(b"a"),
    "packed.parquet.gz": gzip.compress(b"a"),
    "no-footer.parquet": b"PAR1" + bytes(100),
    "empty.parquet": b"",
    "text-inside.arrow": b"only text, but quite some of it",
    "empty.arrow": b"",
}


def _column(*values: object, kind: pyarrow.DataType | None = None) -> pyarrow.Table:
    return pyarrow.table({"id": list(range(len(values))), "text": pyarrow.array(values, kind)})


TABLES = {
    "zero-rows.parquet": _column(kind=pyarrow.string()),
    "nulls.parquet": _column("a", None),
    "only-nulls.parquet": _column(None, None),
    "dictionary.parquet": pyarrow.table({"text": pyarrow.array(["a", "b", "a", None]).dictionary_encode()}),
    "latin-1.parquet": pyarrow.table({"text": pyarrow.array([b"caf\xe9", b"a"]).view(pyarrow.string())}),
    "binary.parquet": _column(b"a"),
    "nested.parquet": _column({"en": "a"}),
    "no-column.parquet": pyarrow.table({"id": [1], "Text": ["a"]}),
    "two-columns.parquet": pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"]),
}


def make(root: Path, name: str) -> list[Path]:
    """Make the input of that name in the empty directory ``root``; what to give to the command."""
    path = root / name
    if name in CONTENT:
        path.write_bytes(CONTENT[name])
    elif name in TABLES:
        parquet.write_table(TABLES[name], path)
    else:
        return OTHERS[name](path) or [path]
    return [path]


def write_rows(path: Path) -> None:
    """Write 300 rows in three groups, ``text`` from ``row 0`` on."""
    if path.suffix == ".parquet":
        parquet.write_table(ROWS, path, row_group_size=100)
        return
    with ipc.new_stream(path, ROWS.schema) as writer:
        writer.write_table(ROWS, max_chunksize=100)


def _one_and_long() -> bytes:
    return b'{"text": "a"}\n{"text": "' + b"b" * LONG + b'"}\n'


def _lines() -> bytes:
    return b"line\n" * (LONG // 5)


def _writes(content: Callable[[], bytes]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content())

    return write


def _long_row(path: Path) -> None:
    parquet.write_table(_column("a", "b" * LONG, "c"), path, use_dictionary=False, write_statistics=False)


def _cut(path: Path) -> None:
    write_rows(path)
    os.truncate(path, path.stat().st_size // 2)


def _offsets(path: Path) -> None:
    """Text whose second value would start far beyond all bytes."""
    write_rows(path)
    raw = path.read_bytes()
    offsets = b"".join(number.to_bytes(4, "little") for number in (0, 5, 10, 15))
    path.write_bytes(raw.replace(offsets, offsets[:4] + b"\xff\xff\xff\x70" + offsets[8:]))


def _saved(path: Path) -> None:
    """As ``save_to_disk`` of Hugging Face datasets writes it, with a cache of ``map`` beside it."""
    path.mkdir(parents=True)
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    for name in (*names, "cache-5f0e.arrow"):
        with ipc.new_stream(path / name, ROWS.schema) as writer:
            writer.write_table(ROWS.slice(0, 2))
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (path / "dataset_info.json").write_text("{}")


def _saved_missing(path: Path) -> None:
    _saved(path)
    (path / "data-00001-of-00002.arrow").unlink()


def _saved_broken(path: Path) -> None:
    _saved(path)
    (path / "state.json").write_text('{"_data_files": ["data-00000-of-00002.arrow"]}')


def _splits(path: Path, *splits: str) -> None:
    for split in splits:
        _saved(path / split)
    (path / "dataset_dict.json").write_text(json.dumps({"splits": splits}))


def _loop(path: Path) -> None:
    (path / "below").mkdir(parents=True)
    (path / "a.txt").write_text("a")
    (path / "below" / "b.txt").write_text("b")
    (path / "below" / "up").symlink_to(path)


def _dangling(path: Path) -> None:
    path.mkdir()
    (path / "gone.txt").symlink_to(path / "nothing")


def _pipe_in_directory(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "pipe.txt")


def _hidden(path: Path) -> None:
    (path / ".corpus.partial").mkdir(parents=True)
    for name in ("a.txt", ".b.txt", ".corpus.partial/c.txt"):
        (path / name).write_text(Path(name).stem)


def _other_suffix(path: Path) -> None:
    path.mkdir()
    (path / "a.md").write_text("a")


def _twice(path: Path) -> list[Path]:
    path.write_text("a")
    link = path.with_name("link.txt")
    link.symlink_to(path)
    hard = path.with_name("hard.txt")
    hard.hardlink_to(path)
    return [path, path.parent / "." / path.name, link, hard, path.parent]


def _link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _text(path: Path) -> None:
    path.write_text("a")


def _line_end_in_name(path: Path) -> list[Path]:
    named = path.with_name("a\nb.txt")
    named.write_text("a")
    return [named]


def _latin_1_name(path: Path) -> list[Path]:
    named = path.with_name(os.fsdecode(b"caf\xe9.txt"))
    named.write_text("a")
    return [named]


def _bad_name(path: Path) -> None:
    """A name in Latin-1, of a file that is spoken of in the output."""
    path.mkdir()
    (path / os.fsdecode(b"caf\xe9.jsonl")).write_bytes(_one_and_long())


OTHERS: dict[str, Callable[[Path], list[Path] | None]] = {
    "many-lines.txt": _writes(_lines),
    "one-line.txt": _writes(lambda: "\u4e2d".encode() * (LONG // 3)),
    "long-line.jsonl": _writes(lambda: _one_and_long() + b'{"text": "c"}\n'),
    "bomb.txt.gz": _writes(lambda: gzip.compress(_lines(), 1)),
    "bomb.jsonl.gz": _writes(lambda: gzip.compress(_one_and_long(), 1)),
    "bomb.jsonl.zst": _writes(lambda: zstd.compress(_one_and_long())),
    "long-row.parquet": _long_row,
    "cut.parquet": _cut,
    "cut.arrow": _cut,
    "offsets.arrow": _offsets,
    "saved": _saved,
    "saved-missing": _saved_missing,
    "saved-broken": _saved_broken,
    "one-split": lambda path: _splits(path, "train"),
    "two-splits": lambda path: _splits(path, "train", "test"),
    "loop": _loop,
    "dangling": _dangling,
    "pipe.txt": lambda path: os.mkfifo(path),
    "pipe-in-directory": _pipe_in_directory,
    "device.txt": _link_to("/dev/zero"),
    "unreadable.txt": _link_to("/proc/self/mem"),
    "missing.txt": lambda path: None,
    "missing-*.txt": lambda path: None,
    "hidden": _hidden,
    "other-suffix": _other_suffix,
    "nothing": lambda path: path.mkdir(),
    "twice.txt": _twice,
    "n\u00e4me \u4e2d.txt": _text,
    "line-end-in-name.txt": _line_end_in_name,
    "[a]*.txt": _text,
    "latin-1-name.txt": _latin_1_name,
    "latin-1-name": _bad_name,
}
