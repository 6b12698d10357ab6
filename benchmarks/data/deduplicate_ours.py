"""Cleaning and deduplication by Meshwright's stages: INPUT_FOLDER WORK_FOLDER RULES. One process."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from meshwright.data.clean.cleaner import Cleaner, Cleaning
from meshwright.data.corpus import Tally, find_files
from meshwright.data.deduplicate.find import Finder
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.deduplicate.sign import Signer
from meshwright.data.preparation.documents import Documents, Reader, rewritten
from meshwright.data.preparation.shards import Shard, plan_shards, shard_path

SETTINGS = Deduplication(exact=True, near=True)


def main() -> None:
    """Print seconds of each step; the documents kept are in WORK_FOLDER/kept."""
    work, cleaning = Path(sys.argv[2]), Cleaning(rule_sets=tuple(filter(None, sys.argv[3].split(","))))
    cleaned, signatures, found, kept = (work / name for name in ("cleaned", "signatures", "found", "kept"))
    for folder in (cleaned, signatures, found, kept):
        folder.mkdir()
    shards = plan_shards(find_files([sys.argv[1]]))
    source = Documents(shards, Reader("text"))
    seconds = {"clean": _time(lambda: _write(source, cleaned, cleaning.cleaner()))}
    documents = rewritten(shards, [shard_path(cleaned, shard, ".jsonl") for shard in shards], "text")
    seconds["sign"] = _time(_each(Signer(SETTINGS, documents.reader, signatures), documents.shards))
    finder = Finder(SETTINGS, documents.shards, signatures, found)
    seconds["compare"] = _time(_each(finder.comparer, finder.comparisons))
    seconds["drop"] = _time(lambda: finder.drop(documents.reader, examples=0))
    seconds["write"] = _time(lambda: _write(documents.without(found), kept, Cleaner([])))
    print(json.dumps(seconds))


def _each(function: Callable[[Shard], None], shards: list[Shard]) -> Callable[[], None]:
    def run() -> None:
        for shard in shards:
            function(shard)

    return run


def _time(function: Callable[[], None]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def _write(documents: Documents, folder: Path, clean: Cleaner) -> None:
    for shard in documents.shards:
        with open(shard_path(folder, shard, ".jsonl"), "w", encoding="utf-8") as file:
            for source in documents.reader(shard, Tally()):
                if (text := clean(source.text).text) is not None:
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
