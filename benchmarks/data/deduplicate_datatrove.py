"""Cleaning and deduplication by datatrove's own pipeline: INPUT_FOLDER WORK_FOLDER RULES PROCESSES.

As FineWeb was made: filters, then signatures, buckets, clusters, and the filter by them, without compression. It has
its own environment.
"""

import json
import sys
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
from timing import timed

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
        executor = LocalPipelineExecutor(
            pipeline,
            tasks=tasks,
            workers=min(int(sys.argv[4]), tasks),
            logging_dir=str(work / "logs" / step),
            start_method="fork",
        )
        seconds[step] = timed(executor.run)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
