"""The side of `tokenizing.py` that is datasets': rows.jsonl, tokenizer.json, its end, output folder, processes."""

import sys

from datasets import load_dataset
from transformers import PreTrainedTokenizerFast


def main() -> None:
    """Load the rows, tokenize them in batches, save."""
    rows, vocabulary, end, folder, processes = sys.argv[1:]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=vocabulary, eos_token=end, split_special_tokens=True)
    many = int(processes) if int(processes) > 1 else None

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        found = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return {"input_ids": [[*ids, tokenizer.eos_token_id] for ids in found]}

    data = load_dataset("json", data_files=rows, split="train", cache_dir=f"{folder}.cache")
    data.map(encode, batched=True, remove_columns=["text"], num_proc=many).save_to_disk(folder, num_proc=many)


if __name__ == "__main__":
    main()
