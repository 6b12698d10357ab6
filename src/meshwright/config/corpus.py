"""The YAML file of ``meshwright data prepare``: what a corpus is made of, and how."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from meshwright.config.errors import COMMAND_LINE, ConfigError, ConfigErrors
from meshwright.config.fields import BelowOne, Count, Natural, Section, Word, entry
from meshwright.config.load import merge, read_tree
from meshwright.config.source import Node
from meshwright.config.validate import validate_as


class CleanConfig(Section):
    """What to do to each document, in this order."""

    repair_unicode: bool = entry(False, "Undo wrong decodings.")
    languages: tuple[Word, ...] = entry((), "Languages to keep; none keeps all.")
    rules: tuple[Word, ...] = entry((), "Rule sets, in order: gopher, c4, c4-fineweb, fineweb.")
    thresholds: dict[str, int | float] = entry(
        {}, "Numbers in place of the published ones, by the names that `--list-rules` prints."
    )
    mask_pii: bool = entry(False, "Replace e-mail and public IP addresses.")


class DeduplicateConfig(Section):
    """Which documents that repeat others to drop."""

    exact: bool = entry(False, "Drop documents whose text is that of an earlier one.")
    near: bool = entry(False, "Drop documents that share most n-grams of words with an earlier one.")
    against: tuple[Word, ...] = entry((), "Corpora prepared before with the same settings; drop what they have.")
    ngram: Count = entry(5, "Words of an n-gram.")
    bands: Count = entry(14, "Groups of hash values; documents are near where all values of one group agree.")
    rows: Count = entry(8, "Hash values of a group.")


class CorpusConfig(Section):
    """Every key of the file."""

    inputs: tuple[Word, ...] = Field(min_length=1, description="Files, directories and glob patterns.")
    output: Word = Field(description="Path of the corpus, without suffix.")
    tokenizer: Word | None = entry(None, "tokenizer.json, sentencepiece or tiktoken file; or give the next one.")
    train_tokenizer: Count | None = entry(None, "Train a byte-level BPE with a vocabulary of this size.")
    tiktoken: Word | None = entry(None, "How a tiktoken file is used: gpt2, cl100k, o200k, llama3, qwen.")
    suffixes: tuple[Word, ...] = entry((), "Files to take from directories; none takes those of known text.")
    text_key: Word = entry("text", "Key of the text in rows.")
    eos_token: Word | None = entry(None, "Ends each document; null is the tokenizer's own.")
    eval_fraction: BelowOne = entry(0.02, "Share of the documents to hold out.")
    clean: CleanConfig = CleanConfig()
    deduplicate: DeduplicateConfig = DeduplicateConfig()
    examples: Natural = entry(3, "Documents to show in the report for each rule that drops some.")
    workers: Natural | None = entry(None, "Processes; null is one for each core, 16 at most.")


def load_corpus_config(path: Path | None, given: Mapping[str, Any]) -> CorpusConfig:
    """A file, if any, with what the command line gives in place of its values.

    Args:
        given: values by dotted path. A tokenizer takes the place of one to train, and the reverse.

    Raises:
        ConfigErrors: with every mistake of the file and the command line at once.
    """
    errors: list[ConfigError] = []
    root = read_tree(path, errors) if path else _node({})
    if errors:
        raise ConfigErrors(errors)
    for one, other in (("tokenizer", "train_tokenizer"), ("train_tokenizer", "tokenizer")):
        if one in given and other not in given and isinstance(root.value, dict):
            root = Node({key: node for key, node in root.value.items() if key != other}, root.origin)
    for key, value in given.items():
        node = _node(value)
        for name in reversed(key.split(".")):
            node = Node({name: node}, COMMAND_LINE)
        root = merge(root, node)
    config = validate_as(CorpusConfig, root, errors)
    if errors or config is None:
        raise ConfigErrors(errors)
    return config


def _node(value: Any) -> Node:
    if isinstance(value, Mapping):
        return Node({str(key): _node(item) for key, item in value.items()}, COMMAND_LINE)
    if isinstance(value, (list, tuple)):
        return Node(tuple(_node(item) for item in value), COMMAND_LINE)
    return Node(value, COMMAND_LINE)
