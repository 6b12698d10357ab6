"""Read a file with datatrove's reader for it: PATH. It has its own environment."""

import json
import sys
import time
from pathlib import Path

from datatrove.pipeline.readers import JsonlReader, ParquetReader


def main() -> None:
    """Print the documents and the CPU seconds of reading, without the imports."""
    path = Path(sys.argv[1])
    folder = str(path.parent)
    if path.suffix == ".parquet":
        reader = ParquetReader(folder, glob_pattern=path.name, read_metadata=False)
    else:
        reader = JsonlReader(folder, glob_pattern=path.name)
    next(iter(reader.run()))
    cpu = time.process_time()
    documents = sum(1 for _ in reader.run())
    print(json.dumps({"documents": documents, "cpu_s": time.process_time() - cpu}))


if __name__ == "__main__":
    main()
