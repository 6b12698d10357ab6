"""Reading documents beside datatrove and Hugging Face datasets: CPU seconds for the same files.

    python reading.py --peers PYTHON [--size MB] [--rounds N] [--json FILE]

PYTHON is an interpreter of an environment of its own: ``pip install 'datatrove[io]' datasets orjson zstandard``. The
files hold the made-up web with an address, a date and a number for each page, as crawls have them. One process each, by
turns; the best round of each counts. Reading is all: documents are counted and dropped. Arrow is read as
``save_to_disk`` wrote it.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpora
import pyarrow
from pyarrow import ipc, parquet

from meshwright.data.inputs.streams import zstd_package

HERE = Path(__file__).parent
FILES = ("web.jsonl", "web.jsonl.gz", "web.jsonl.zst", "web.parquet", "saved")
PEERS = {"datatrove": FILES[:4], "datasets": FILES}
ROWS_AT_ONCE = 1000


def main() -> None:
    """Make the files, read them, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, metavar="PYTHON", help="interpreter that has datatrove and datasets")
    parser.add_argument("--size", type=int, default=100, metavar="MB", help="text in each file (100)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        megabytes = write_files(folder, args.size * 10**6) / 1e6
        results = [_compare(folder / file, args.peers, args.rounds, megabytes) for file in FILES]
    for result in results:
        print(json.dumps(result))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def write_files(folder: Path, size: int) -> int:
    """Write all files; the bytes of text in each."""
    rows = list(_rows(size))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    (folder / "web.jsonl").write_bytes(lines)
    (folder / "web.jsonl.gz").write_bytes(gzip.compress(lines, 6))
    (folder / "web.jsonl.zst").write_bytes(zstd_package(folder).compress(lines, 3))
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, folder / "web.parquet", compression="zstd", row_group_size=20 * ROWS_AT_ONCE)
    (folder / "saved").mkdir()
    with ipc.new_stream(folder / "saved" / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS_AT_ONCE)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0", "_format_type": None}
    state |= {"_format_columns": None, "_format_kwargs": {}, "_output_all_columns": False, "_split": None}
    (folder / "saved" / "state.json").write_text(json.dumps(state))
    (folder / "saved" / "dataset_info.json").write_text("{}")
    return sum(len(row["text"].encode()) for row in rows)


def _rows(size: int) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(corpora.generated(size)):
        url = f"https://www.example.com/pages/{number:08}.html"
        yield {
            "id": f"<urn:uuid:{number:032x}>",
            "url": url,
            "date": "2026-11-30T09:00:00Z",
            "score": 0.5,
            "text": text,
        }


def _compare(path: Path, peers: str, rounds: int, megabytes: float) -> dict[str, Any]:
    sides = {"ours": (sys.executable, "reading_ours.py")}
    sides |= {name: (peers, f"reading_{name}.py") for name, files in PEERS.items() if path.name in files}
    best: dict[str, float] = {}
    documents = set()
    for _ in range(rounds):
        for side, (python, script) in sides.items():
            done = _run([python, str(HERE / script), str(path)])
            documents.add(done["documents"])
            best[side] = min(best.get(side, done["cpu_s"]), done["cpu_s"])
    assert len(documents) == 1, f"{path}: the sides read {documents} documents"
    rates = {f"{side}_mb_per_cpu_s": round(megabytes / seconds) for side, seconds in best.items()}
    ratios = {f"{side}_ratio": round(best[side] / best["ours"], 1) for side in sides if side != "ours"}
    return {"file": path.name, "megabytes_of_text": round(megabytes, 1), **rates, **ratios}


def _run(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
