"""The side of `tokenizing.py` that is megatron-core's: rows.jsonl, tokenizer.json, its end, output prefix, processes.

The way of Megatron-LM's tools/preprocess_data.py: one document at a time through a pool, 32 to a task, written by the
IndexedDatasetBuilder of the package.
"""

import json
import multiprocessing
import sys
from typing import Any

from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from transformers import PreTrainedTokenizerFast

STATE: dict[str, Any] = {}


def main() -> None:
    """Tokenize and write."""
    rows, vocabulary, end, prefix, processes = sys.argv[1:]
    start(vocabulary, end)
    dtype = DType.optimal_dtype(len(STATE["tokenizer"]))
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    with (
        open(rows, encoding="utf-8") as lines,
        multiprocessing.Pool(int(processes), initializer=start, initargs=(vocabulary, end)) as pool,
    ):
        for ids in pool.imap(encode, lines, 32):
            builder.add_document(ids, [len(ids)])
    builder.finalize(f"{prefix}.idx")


def start(vocabulary: str, end: str) -> None:
    """Load the tokenizer of a process. Special tokens in the text are ordinary text, as on our side."""
    STATE["tokenizer"] = PreTrainedTokenizerFast(tokenizer_file=vocabulary, eos_token=end, split_special_tokens=True)


def encode(line: str) -> list[int]:
    """Ids of the text of a row, ended."""
    tokenizer = STATE["tokenizer"]
    return [*tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


if __name__ == "__main__":
    main()
