"""Cleaning beside datatrove: the same decisions? how fast?

    python clean.py --datatrove PYTHON [--corpus NAME ...] [--rounds N] [--every N] [--json FILE]

PYTHON is an interpreter of an environment of its own with ``pip install 'datatrove[processing]' spacy``. Both sides get
the same texts in memory and one process each; they take turns, and the best round of each counts. The chain is
Gopher repetition, Gopher quality, C4, FineWeb, each document up to the rule that drops it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from clean_names import NAMES
from corpora import FOR_RULES

HERE = Path(__file__).parent


def main() -> None:
    """Run all corpora, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datatrove", required=True, metavar="PYTHON", help="interpreter that has datatrove")
    parser.add_argument("--corpus", action="append", choices=FOR_RULES, help="only these (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side (3)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th document (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    results = [_compare(name, args.datatrove, args.rounds, args.every) for name in args.corpus or FOR_RULES]
    for result in results:
        print(_line(result))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _compare(name: str, datatrove: str, rounds: int, every: int) -> dict[str, Any]:
    texts = list(FOR_RULES[name]())[::every]
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.json"
        source.write_text(json.dumps(texts), encoding="utf-8")
        sides = {"ours": (sys.executable, "clean_ours.py"), "datatrove": (datatrove, "clean_datatrove.py")}
        for number in range(rounds):
            for side, (python, script) in sides.items():
                target = [str(Path(folder) / f"{side}.json")] if number == 0 else []
                seconds = _run([python, str(HERE / script), str(source), *target])
                best[side] = min(best.get(side, seconds), seconds, key=lambda one: one["cpu_s"])
        ours, theirs = (json.loads((Path(folder) / f"{side}.json").read_text()) for side in sides)
    return {
        "corpus": name,
        "documents": len(texts),
        "characters": sum(map(len, texts)),
        **best,
        "cpu_ratio": best["datatrove"]["cpu_s"] / best["ours"]["cpu_s"],
        "wall_ratio": best["datatrove"]["wall_s"] / best["ours"]["wall_s"],
        "agreement": {rules: _agreement(ours[rules], theirs[rules]) for rules in ours},
    }


def _run(command: list[str]) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _agreement(ours: list[list[str | None]], theirs: list[list[str | None]]) -> dict[str, Any]:
    """Documents with the same outcome (dropped, or kept with the same text), and those with the same rule too."""
    outcome = [one[0] == other[0] for one, other in zip(ours, theirs, strict=True)]
    rule = [NAMES.get(str(one[1])) == other[1] for one, other in zip(ours, theirs, strict=True)]
    both = [same and named for same, named in zip(outcome, rule, strict=True)]
    different = [
        {"document": number, "ours": ours[number][1], "datatrove": theirs[number][1]}
        for number, same in enumerate(both)
        if not same
    ]
    same = sum(outcome) / len(outcome)
    return {"outcome": same, "outcome_and_rule": sum(both) / len(both), "different": different[:20]}


def _line(result: dict[str, Any]) -> str:
    ours, theirs = result["ours"], result["datatrove"]
    lowest = min(rules["outcome"] for rules in result["agreement"].values())
    return (
        f"{result['corpus']}: {result['documents']} documents, {result['characters'] / 1e6:.1f} M characters; "
        f"CPU {ours['cpu_s']:.2f} s, datatrove {theirs['cpu_s']:.2f} s, ratio {result['cpu_ratio']:.2f}; "
        f"wall ratio {result['wall_ratio']:.2f}; same outcome {lowest:.3%} or more for every rule set"
    )


if __name__ == "__main__":
    main()
