"""Largest process of ``data prepare``, by the stages asked for: python stage_memory.py [--size MB] [--json FILE]

Prepares the made-up web, and a file with one row of 59 MB of it, with one worker: tokenizing alone, with deduplication
before it, with cleaning before it. Prints the largest resident set of any of its processes, pages of mapped files
included. Linux only.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import corpora
import psutil

from meshwright.data.vocabulary.tokenizer import train_tokenizer

ROW_BYTES = 59_000_000
STAGES = {
    "tokenizing": (),
    "exact and near deduplication": ("--deduplicate", "exact,near"),
    "cleaning": ("--clean", "gopher,c4,fineweb"),
}
POLL_SECONDS = 0.02


def main() -> None:
    """Make the files, prepare them, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100, metavar="MB", help="of small documents (100)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    results: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = train_tokenizer(corpora.generated(5_000_000), 8000)
        (folder / "tokenizer.json").write_bytes(tokenizer.body)
        _write(folder / "documents.jsonl", corpora.generated(args.size * 1_000_000))
        _write(
            folder / "row.jsonl", [" ".join(corpora.generated(ROW_BYTES)).encode()[:ROW_BYTES].decode(errors="ignore")]
        )
        for stage, options in STAGES.items():
            results[stage] = {path: _peak_mib(folder, path, options) for path in ("documents.jsonl", "row.jsonl")}
            print(stage, json.dumps(results[stage]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _write(path: Path, texts: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


def _peak_mib(folder: Path, path: str, options: tuple[str, ...]) -> int:
    """MiB of the largest process of a preparation; what becomes of a row that is dropped does not matter."""
    command = [sys.executable, "-m", "meshwright", "data", "prepare", path, "--tokenizer", "tokenizer.json"]
    settings = ["--output", "corpus", "--overwrite", "--eval-fraction", "0", "--workers", "1"]
    with subprocess.Popen(
        [*command, *settings, *options], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        process, peak = psutil.Process(running.pid), 0
        while running.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                peak = max(peak, *(_resident_kib(one.pid) for one in [process, *process.children(recursive=True)]))
            time.sleep(POLL_SECONDS)
    return peak >> 10


def _resident_kib(pid: int) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()
