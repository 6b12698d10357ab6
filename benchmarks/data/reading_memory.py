"""Peak memory of reading files that do not fit: long lines, long texts, bombs, large groups of rows.

    python reading_memory.py [--json FILE]

Makes each file (up to 1 GB on the disk at a time), reads it in a process of its own, and prints the largest resident
set of that process beside that of one that reads nothing. Linux only.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
from pyarrow import ipc, parquet

from meshwright.data.inputs.streams import zstd_package

MEGABYTE = 10**6
LINE = b"some words that make a line of text, with a line end after them\n"
EMOJI = "\U0001f600"


def _long_line(path: Path) -> None:
    path.write_bytes(b'{"text": "a"}\n{"text": "' + b"word " * 60_000_000 + b'"}\n')


def _longest_line(path: Path) -> None:
    """A line just below the limit, of characters that take 4 bytes each as UTF-8 and in memory."""
    path.write_text(json.dumps({"text": EMOJI * (16_000_000)}, ensure_ascii=False) + "\n")


def _repaired_line(path: Path) -> None:
    """Half a surrogate pair, which msgspec leaves to ``json``."""
    path.write_bytes(rb'{"text": "\ud83d' + b"word " * 12_000_000 + b'"}\n')


def _long_text(path: Path) -> None:
    with open(path, "wb") as file:
        for _ in range(1000):
            file.write(LINE * (MEGABYTE // len(LINE)))


def _gzip_text(path: Path) -> None:
    path.write_bytes(gzip.compress(LINE * MEGABYTE) * 64)


def _gzip_line(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"text": "' + b"a" * 1000 * MEGABYTE + b'"}\n'))


def _zstd_line(path: Path) -> None:
    block = b"a" * 64 * MEGABYTE
    compressor = zstd_package(path).ZstdCompressor()
    with open(path, "wb") as file:
        file.write(compressor.compress(b'{"text": "'))
        for _ in range(64):
            file.write(compressor.compress(block))
        file.write(compressor.compress(b'"}\n', mode=compressor.FLUSH_FRAME))


def _table() -> pyarrow.Table:
    texts = [LINE.decode() * 30 + str(number) for number in range(150_000)]
    return pyarrow.table({"text": texts, "numbers": [[number, number] for number in range(len(texts))]})


def _one_group(path: Path) -> None:
    table = _table()
    parquet.write_table(table, path, row_group_size=table.num_rows)


def _batches(path: Path) -> None:
    table = _table()
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def _repeated_value(path: Path) -> None:
    """One value of 16 MB, 300 times, kept once in a dictionary."""
    values = pyarrow.array(["a" * 16 * MEGABYTE])
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 300, pyarrow.int32()), values)
    parquet.write_table(pyarrow.table({"text": column}), path, store_schema=False, dictionary_pagesize_limit=1 << 30)


FILES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "line of 300 MB": ("long.jsonl", _long_line),
    "line of 64 MB, 4 bytes a character": ("longest.jsonl", _longest_line),
    "line of 60 MB with half a surrogate pair": ("repaired.jsonl", _repaired_line),
    "text of 1 GB": ("long.txt", _long_text),
    "text of 4 GB in gzip": ("long.txt.gz", _gzip_text),
    "line of 1 GB in gzip": ("long.jsonl.gz", _gzip_line),
    "line of 4 GB in zstd": ("long.jsonl.zst", _zstd_line),
    "300 MB of rows in one group": ("rows.parquet", _one_group),
    "300 MB of rows in batches": ("rows.arrow", _batches),
    "value of 16 MB, 300 times by a dictionary": ("value.parquet", _repeated_value),
}
# Not ru_maxrss: that is at least what the parent had when it started the process.
READ = r"""
import re, sys
from pathlib import Path
from meshwright.data.corpus import Tally, find_files, parts_of, read_parts
tally = Tally()
parts = [part for path in find_files(sys.argv[1:]) for part, _ in parts_of(path, 16 << 20)]
for source in read_parts(parts, text_key="text", tally=tally):
    pass
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]
print(int(peak) >> 10, tally.documents, tally.too_long)
"""


def main() -> None:
    """Make, read, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    results = {"nothing": _read()}
    for what, (name, make) in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            make(path)
            results[what] = {"file_mb": round(path.stat().st_size / MEGABYTE, 1), **_read(path)}
        print(what, json.dumps(results[what]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _read(*paths: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", READ, *map(str, paths)], stdout=subprocess.PIPE, text=True, check=True)
    peak, documents, too_long = map(int, done.stdout.split())
    return {"peak_mib": peak, "documents": documents, "too_long": too_long}


if __name__ == "__main__":
    main()
