"""Read a file or a saved dataset with the readers of data prepare: PATH."""

import json
import sys
import time

from meshwright.data.corpus import Tally, find_files, parts_of, read_parts

PART_BYTES = 16 << 20


def main() -> None:
    """Print the documents and the CPU seconds of reading, without the imports."""
    files = find_files([sys.argv[1]])
    next(read_parts([part for part, _ in parts_of(files[0], PART_BYTES)], text_key="text", tally=Tally()))
    cpu = time.process_time()
    parts = [part for path in files for part, _ in parts_of(path, PART_BYTES)]
    documents = sum(1 for _ in read_parts(parts, text_key="text", tally=Tally()))
    print(json.dumps({"documents": documents, "cpu_s": time.process_time() - cpu}))


if __name__ == "__main__":
    main()
