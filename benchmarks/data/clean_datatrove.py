"""Decisions and speed of datatrove's filters on a file of documents: FILE [DECISIONS]. It has its own environment."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)


def main() -> None:
    """Print seconds of the chain; write what each filter says of each document."""
    texts = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    list(_chain(["warm up. " * 30]))
    wall, cpu = time.perf_counter(), time.process_time()
    kept = len(list(_chain(texts)))
    print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "kept": kept}))
    if len(sys.argv) < 3:
        return
    filters = {"repetition": GopherRepetitionFilter(), "quality": GopherQualityFilter(), "c4": C4QualityFilter()}
    filters |= {"c4-fineweb": C4QualityFilter(filter_no_terminal_punct=False), "fineweb": FineWebQualityFilter()}
    decisions = {name: [_said(step, text) for text in texts] for name, step in filters.items()}
    decisions["chain"] = [_first(filters, text) for text in texts]
    Path(sys.argv[2]).write_text(json.dumps(decisions), encoding="utf-8")


def _chain(texts: list[str]) -> Iterator[Document]:
    documents: Any = (Document(text=text, id=str(number)) for number, text in enumerate(texts))
    for step in (GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(), FineWebQualityFilter()):
        documents = step.run(documents)
    return documents


def _first(filters: dict[str, Any], text: str) -> list[str | None]:
    said: list[str | None] = [text, None]
    for name in ("repetition", "quality", "c4", "fineweb"):
        said = _said(filters[name], said[0])
        if said[0] is None:
            break
    return said


def _said(step: Any, text: str | None) -> list[str | None]:
    document = Document(text=text, id="0")
    try:
        kept = step.filter(document)
    except Exception as error:
        return [None, f"error {type(error).__name__}: {error}"]
    return [document.text, None] if kept is True else [None, kept[1]]


if __name__ == "__main__":
    main()
