"""Read a file, or a saved dataset, with Hugging Face datasets: PATH. It has its own environment."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import datasets


def main() -> None:
    """Print the documents and the CPU seconds of reading, without the imports."""
    path = Path(sys.argv[1])
    next(iter(_texts(path)))
    cpu = time.process_time()
    documents = sum(1 for _ in _texts(path))
    print(json.dumps({"documents": documents, "cpu_s": time.process_time() - cpu}))


def _texts(path: Path) -> Any:
    """Rows with the text alone: streamed from a file, mapped from a saved dataset."""
    if path.is_dir():
        return datasets.load_from_disk(str(path)).select_columns(["text"])
    kind = "parquet" if path.suffix == ".parquet" else "json"
    options = {"columns": ["text"]} if kind == "parquet" else {}
    found = datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True, **options)
    return found.select_columns(["text"])


if __name__ == "__main__":
    main()
