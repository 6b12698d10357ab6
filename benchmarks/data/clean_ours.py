"""Decisions and speed of ``meshwright.data.clean`` on a file of documents: FILE [DECISIONS]."""

import json
import sys
import time
from pathlib import Path

from meshwright.data.clean.cleaner import RULE_SETS, Cleaning
from meshwright.data.clean.document import Decision, Document
from meshwright.data.clean.words import WordSplitter


def main() -> None:
    """Print seconds of the chain; write what each rule set says of each document."""
    texts = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    clean = Cleaning(rule_sets=("gopher", "c4", "fineweb")).cleaner()
    clean("warm up")
    wall, cpu = time.perf_counter(), time.process_time()
    kept = sum(clean(text).text is not None for text in texts)
    print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "kept": kept}))
    if len(sys.argv) < 3:
        return
    splitter = WordSplitter()
    rules = {"repetition": RULE_SETS["gopher"][0], "quality": RULE_SETS["gopher"][1], "c4": RULE_SETS["c4"][0]}
    rules |= {"c4-fineweb": RULE_SETS["c4-fineweb"][0], "fineweb": RULE_SETS["fineweb"][0]}
    decisions = {name: [_said(rule(Document(text, splitter))) for text in texts] for name, rule in rules.items()}
    decisions["chain"] = [_said(clean(text)) for text in texts]
    Path(sys.argv[2]).write_text(json.dumps(decisions), encoding="utf-8")


def _said(decision: Decision) -> list[str | None]:
    return [decision.text, decision.rule]


if __name__ == "__main__":
    main()
