"""Cleaning and deduplication beside datatrove's own pipeline: the same documents kept? how fast?

    python deduplicate.py [--datatrove PYTHON] [--corpus NAME ...] [--size MB] [--rules NAMES] [--processes N]
        [--rounds N] [--folder DIR] [--json FILE]

PYTHON is an interpreter of an environment of its own with ``pip install 'datatrove[io,processing]' spacy``. Both sides
read the same .jsonl files and write the documents kept as .jsonl, in as many processes, by the same steps: the filters
named by --rules (none where that is empty), then MinHash with FineWeb's settings. They take turns, and the best round
of each counts. Without --datatrove only our side runs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpora

HERE = Path(__file__).parent
FILE_BYTES = 16_000_000


def main() -> None:
    """Run all corpora, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datatrove", metavar="PYTHON", help="interpreter that has datatrove")
    parser.add_argument("--corpus", action="append", choices=CORPORA, help="only these (default: all)")
    parser.add_argument("--size", type=int, default=100, metavar="MB", help="of the generated corpus (100)")
    parser.add_argument("--rules", default="gopher,c4,fineweb", metavar="NAMES", help="filters (gopher,c4,fineweb)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="of each side (1)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each side (1)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for the corpora and all work (default: temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    results = []
    for name in args.corpus or CORPORA:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            results.append(_compare(name, args, Path(folder)))
        print(_line(results[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _generated(size: int) -> Iterator[str]:
    return corpora.generated(size * 1_000_000)


CORPORA = {
    "standard library": lambda size: corpora.standard_library(),
    "docstrings": lambda size: corpora.docstrings(),
    "generated": _generated,
}


def _compare(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {"corpus": name, **_write(CORPORA[name](args.size), folder / "input")}
    sides = {"ours": [sys.executable, str(HERE / "deduplicate_ours.py")]}
    if args.datatrove:
        sides["datatrove"] = [args.datatrove, str(HERE / "deduplicate_datatrove.py")]
    for number in range(args.rounds):
        for side, command in sides.items():
            work = folder / f"{side}-{number}"
            work.mkdir()
            arguments = [str(folder / "input"), str(work), args.rules, str(args.processes)]
            seconds = _run([*command, *arguments], work / "log")
            result[side] = min(result.get(side, seconds), seconds, key=_cpu)
    kept = {side: _texts(folder / f"{side}-0" / "kept") for side in sides}
    result["kept"] = kept["ours"].total()
    result["after_cleaning"] = _texts(folder / "ours-0" / "cleaned").total()
    if args.datatrove:
        result["only_ours"] = (kept["ours"] - kept["datatrove"]).total()
        result["only_datatrove"] = (kept["datatrove"] - kept["ours"]).total()
        result["same"] = 1 - (result["only_ours"] + result["only_datatrove"]) / result["documents"]
        result["cpu_ratio"] = _cpu(result["datatrove"]) / _cpu(result["ours"])
    return result


def _write(texts: Iterator[str], folder: Path) -> dict[str, int]:
    """Write .jsonl files of about ``FILE_BYTES``; documents and bytes of text."""
    folder.mkdir()
    documents = size = 0
    for text in texts:
        with open(folder / f"{size // FILE_BYTES:05}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"text": text, "id": str(documents)}, ensure_ascii=False) + "\n")
        documents, size = documents + 1, size + len(text.encode())
    return {"documents": documents, "bytes": size}


def _run(command: list[str], log: Path) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(log, "w", encoding="utf-8") as errors:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text(encoding='utf-8')[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _cpu(seconds: dict[str, Any]) -> float:
    return sum(step["cpu_s"] for step in seconds.values())


def _texts(folder: Path) -> Counter[bytes]:
    """Hashes of the documents of .jsonl files; two with the same text are not told apart."""
    texts: Counter[bytes] = Counter()
    for path in folder.glob("*.jsonl"):
        with open(path, encoding="utf-8") as file:
            texts.update(hashlib.md5(json.loads(line)["text"].encode()).digest() for line in file)
    return texts


def _line(result: dict[str, Any]) -> str:
    line = f"{result['corpus']}: {result['documents']} documents, {result['bytes'] / 1e6:.1f} MB; "
    line += f"{result['after_cleaning']} left by cleaning, {result['kept']} by deduplication; "
    for side in ("ours", "datatrove"):
        if side in result:
            steps = ", ".join(f"{step} {times['cpu_s']:.1f}" for step, times in result[side].items())
            rate = result["documents"] / _cpu(result[side])
            line += f"{side} CPU {_cpu(result[side]):.1f} s ({steps}), {rate:.0f} documents/s; "
    if "same" in result:
        line += f"ratio {result['cpu_ratio']:.2f}; same decisions {result['same']:.4%}"
    return line


if __name__ == "__main__":
    main()
