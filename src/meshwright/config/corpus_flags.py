"""The options of ``meshwright data prepare`` by the keys of its config file."""

import re

FLAGS = {
    "inputs": "INPUT ...",
    "output": "--output PREFIX",
    "tokenizer": "--tokenizer FILE",
    "train_tokenizer": "--train-tokenizer VOCAB_SIZE",
    "tiktoken": "--tiktoken NAME",
    "suffixes": "--suffix SUFFIXES",
    "text_key": "--text-key KEY",
    "eos_token": "--eos-token TOKEN",
    "eval_fraction": "--eval-fraction X",
    "clean.repair_unicode": "--repair-unicode",
    "clean.languages": "--language CODES",
    "clean.rules": "--clean RULES",
    "clean.thresholds": "--threshold NAME=VALUE",
    "clean.mask_pii": "--mask-pii",
    "deduplicate.exact": "--deduplicate exact",
    "deduplicate.near": "--deduplicate near",
    "deduplicate.against": "--against PREFIX ...",
    "deduplicate.ngram": "--ngram N",
    "deduplicate.bands": "--bands N",
    "deduplicate.rows": "--rows N",
    "examples": "--examples N",
    "workers": "--workers N",
}
# What is about one call of the command, not about the corpus.
ONLY_FLAGS = {name: f"--{name.replace('_', '-')}" for name in ("html", "overwrite", "json", "task", "list_rules")}


def flag_of(key: str) -> str:
    """The option of a key or of an item of it, without the word for its value."""
    if key.startswith("clean.thresholds."):
        return f"--threshold {key.removeprefix('clean.thresholds.')}"
    while key not in FLAGS and "." in key:
        key = key.rpartition(".")[0]
    flag = FLAGS.get(key, key)
    return flag if key in ("deduplicate.exact", "deduplicate.near") else flag.partition(" ")[0]


def named(message: str, *, flags: bool) -> str:
    """A message with the keys that stand in braces in it by their own names, or by those of their options."""
    return re.sub(r"\{([a-z_.]+)\}", lambda found: FLAGS.get(found[1], found[1]) if flags else found[1], message)


def number(text: str) -> int | float | str:
    """A number, or what is no number as it is: the schema says what is legal."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
