"""Cleaning and deduplication by Meshwright's stages: INPUT_FOLDER WORK_FOLDER RULES PROCESSES."""

import json
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from timing import timed

from meshwright.data.clean.cleaner import Cleaning
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
    seconds = {"clean": timed(lambda: _each(partial(_write, source, cleaned, cleaning), shards))}
    documents = rewritten(shards, [shard_path(cleaned, shard, ".jsonl") for shard in shards])
    seconds["sign"] = timed(lambda: _each(Signer(SETTINGS, documents.reader, signatures), documents.shards))
    finder = Finder(SETTINGS, documents.shards, signatures, found)
    seconds["compare"] = timed(lambda: _each(finder.comparer, finder.comparisons))
    seconds["drop"] = timed(lambda: finder.drop(documents.reader, examples=0))
    left = documents.without(found)
    seconds["write"] = timed(lambda: _each(partial(_write, left, kept, Cleaning()), left.shards))
    print(json.dumps(seconds))


def _each(function: Callable[[Shard], None], shards: list[Shard]) -> None:
    if (processes := int(sys.argv[4])) == 1:
        for shard in shards:
            function(shard)
    else:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            pool.map(function, shards, chunksize=1)
            pool.close()
            pool.join()


def _write(documents: Documents, folder: Path, cleaning: Cleaning, shard: Shard) -> None:
    clean = cleaning.cleaner()
    with open(shard_path(folder, shard, ".jsonl"), "w", encoding="utf-8") as file:
        for source in documents.reader(shard, Tally()):
            if (text := clean(source.text).text) is not None:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
