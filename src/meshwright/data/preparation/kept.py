"""What a request that was not completed has finished, for people."""

from meshwright.data.preparation.directories import Directories

# What is counted in the directory of a stage: pattern, and what it is.
COUNTED = {
    "clean": ("??????.json", "shards cleaned"),
    "signatures": ("*.npy", "shards signed"),
    "duplicates": ("duplicates.json", "duplicates found"),
    "tokenizer": ("tokenizer.json", "tokenizer trained"),
    "tokens": ("??????.json", "shards tokenized"),
    "corpus": ("*.written", "shards written"),
}


def kept_work(directories: Directories) -> str:
    """A sentence on what the same request goes on from; empty where it has finished nothing."""
    found = []
    for name, (pattern, what) in COUNTED.items():
        if count := sum(1 for _ in getattr(directories, name).glob(pattern)):
            found.append(f"{count} {what}")
    if not found:
        return ""
    return f"kept in {directories.corpus.parent}: {', '.join(found)}; the same command goes on from there"
