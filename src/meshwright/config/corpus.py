"""The YAML file of ``meshwright data prepare``: what a corpus is made of, and how."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, InstanceOf

from meshwright.config.corpus_flags import FLAGS, ONLY_FLAGS, flag_of, named
from meshwright.config.errors import COMMAND_LINE, ConfigError, ConfigErrors, Origin
from meshwright.config.fields import BelowOne, Count, Natural, Section, Word, entry
from meshwright.config.load import merge, read_tree
from meshwright.config.source import Node
from meshwright.config.validate import drop_cleared, origin_of, validate_as

# Names of files may have bytes that are not UTF-8, which pydantic takes for no text.
Name = Annotated[InstanceOf[str], Field(min_length=1)]
# A mistake that more than the schema tells: key and message. Other keys that the message names stand in braces.
Mistakes = Iterator[tuple[str, str]]


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

    inputs: tuple[Name, ...] = Field(min_length=1, description="Files, directories and glob patterns.")
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
    workers: Natural | None = entry(None, "Processes; null is one for each core that it may use, 16 at most.")


def load_corpus_config(
    path: Path | None,
    given: Mapping[str, Any],
    check: Callable[[CorpusConfig, Collection[str]], Mistakes] | None = None,
) -> CorpusConfig:
    """A file, if any, with what the command line gives in place of its values.

    Args:
        given: values by dotted path. A tokenizer takes the place of one to train, and the reverse.
        check: gets the config and the keys that the file or the command line gives, and finds what the schema cannot.

    Raises:
        ConfigErrors: with every mistake of the file and the command line at once.
    """
    errors: list[ConfigError] = []
    root = read_tree(path, errors) if path else _node({})
    if errors:
        raise ConfigErrors(errors)
    root = _with_options(root, given)
    config = validate_as(CorpusConfig, root, errors)
    if config is not None and check is not None:
        origins = {key: node.origin for key, node in drop_cleared(root, CorpusConfig).walk()}
        errors += [_error(key, message, origins, path) for key, message in check(config, origins)]
    if errors or config is None:
        raise ConfigErrors([_for_people(error, path) for error in errors])
    return config


def _with_options(root: Node, given: Mapping[str, Any]) -> Node:
    for one, other in (("tokenizer", "train_tokenizer"), ("train_tokenizer", "tokenizer")):
        if one in given and other not in given and isinstance(root.value, dict):
            root = Node({key: node for key, node in root.value.items() if key != other}, root.origin)
    for key, value in given.items():
        node = _node(value)
        for name in reversed(key.split(".")):
            node = Node({name: node}, COMMAND_LINE)
        root = merge(root, node)
    return root


def _error(key: str, message: str, origins: Mapping[str, Origin], path: Path | None) -> ConfigError:
    """A mistake at its place, with other keys named as they are given there."""
    origin = origin_of(key, origins)
    if origin is None:
        origin = Origin(str(path)) if path else COMMAND_LINE
    return ConfigError.at(origin, named(message, flags=origin == COMMAND_LINE), key)


def _for_people(error: ConfigError, path: Path | None) -> ConfigError:
    """The same mistake by the name of its option where no file has it."""
    if error.key.startswith("clean.thresholds."):
        error = replace(error, message=error.message.replace("a mapping of names to numbers", "a number"))
    if error.file is None and error.key in FLAGS:
        option = FLAGS[error.key]
        if path is None:
            return ConfigError("is missing", option)
        return replace(error, file=str(path), suggestion=f"write it there, or give {option}")
    if error.file == COMMAND_LINE.source:
        return replace(error, file=None, key=flag_of(error.key))
    if error.message == "unknown key" and error.key in ONLY_FLAGS:
        return replace(error, message="can only be given on the command line", suggestion=ONLY_FLAGS[error.key])
    return error


def _node(value: Any) -> Node:
    if isinstance(value, Mapping):
        return Node({str(key): _node(item) for key, item in value.items()}, COMMAND_LINE)
    if isinstance(value, (list, tuple)):
        return Node(tuple(_node(item) for item in value), COMMAND_LINE)
    return Node(value, COMMAND_LINE)
