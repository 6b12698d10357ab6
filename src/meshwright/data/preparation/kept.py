"""What a request that was not completed has finished, for people."""

from meshwright.data.clean.shards import CLEAN_COUNTS
from meshwright.data.deduplicate.report import FOUND
from meshwright.data.deduplicate.sign import KEYS
from meshwright.data.preparation.directories import Directories
from meshwright.data.preparation.tokenize_stage import TOKEN_COUNTS
from meshwright.data.preparation.train_stage import TRAINED
from meshwright.data.preparation.write_stage import WRITTEN

# What is counted in the directory of a stage: pattern, and what it is.
COUNTED = {
    "clean": (f"??????{CLEAN_COUNTS}", "shards cleaned"),
    "signatures": (f"*{KEYS}", "shards signed"),
    "duplicates": (FOUND, "duplicates found"),
    "tokenizer": (TRAINED, "tokenizer trained"),
    "tokens": (f"??????{TOKEN_COUNTS}", "shards tokenized"),
    "corpus": (f"*{WRITTEN}", "shards written"),
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
