"""Cleaning and deduplication by datatrove's own pipeline: INPUT_FOLDER WORK_FOLDER RULES. It has its own environment.

As FineWeb was made: filters, then signatures, buckets, clusters, and the filter by them. One process, no compression.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

FILTERS = {
    "gopher": (GopherRepetitionFilter, GopherQualityFilter),
    "c4": (C4QualityFilter,),
    "fineweb": (FineWebQualityFilter,),
}


def main() -> None:
    """Print seconds of each step; the documents kept are in WORK_FOLDER/kept."""
    source, work = sys.argv[1], Path(sys.argv[2])
    files, config = len(list(Path(source).iterdir())), MinhashConfig()
    cleaned, signatures, buckets, removed, kept = (
        str(work / name) for name in ("cleaned", "signatures", "buckets", "removed", "kept")
    )
    name = "${rank}.jsonl"
    filters = [step() for rules in filter(None, sys.argv[3].split(",")) for step in FILTERS[rules]]
    steps: dict[str, tuple[list[Any], int]] = {
        "clean": ([JsonlReader(source), *filters, JsonlWriter(cleaned, name, compression=None)], files),
        "sign": ([JsonlReader(cleaned), MinhashDedupSignature(signatures, config)], files),
        "buckets": ([MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
        "cluster": ([MinhashDedupCluster(buckets, removed, config)], 1),
        "write": (
            [JsonlReader(cleaned), MinhashDedupFilter(removed), JsonlWriter(kept, name, compression=None)],
            files,
        ),
    }
    seconds = {}
    for step, (pipeline, tasks) in steps.items():
        wall, cpu = time.perf_counter(), time.process_time()
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(work / "logs" / step)).run()
        seconds[step] = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
