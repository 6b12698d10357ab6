"""Corpora made with vocabularies of every kind: what lies beside them, and that it is used."""

import base64
from pathlib import Path

import numpy as np
import pytest

from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset
from meshwright.data.inspect import inspect_corpus
from meshwright.data.preparation.prepare import prepare
from meshwright.data.record import load_record, tokenizer_path
from meshwright.data.vocabulary.nasty import NASTY_TEXTS
from meshwright.data.vocabulary.tokenizer import load_tokenizer, train_tokenizer
from sentencepiece_models import llama_2_model

SPECIALS = "a file about <|endoftext|>, </s>, <s>, <unk> and <|end_of_text|></s><|endoftext|>"
TEXTS = ["A start.", *(text for text in NASTY_TEXTS if text.strip()), SPECIALS, "The herons come in the summer. " * 9]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(TEXTS):
        (root / f"{number:02}.txt").write_bytes(text.encode("utf-8"))
    return root


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vocabularies")
    (root / "tokenizer.model").write_bytes(llama_2_model("\n".join(TEXTS).splitlines(), 600))
    (root / "tokenizer.json").write_bytes(train_tokenizer(TEXTS, 400).body)
    ranks = b"".join(b"%s %d\n" % (base64.b64encode(bytes([byte])), byte) for byte in range(256)) + b"dGhl 256\n"
    (root / "ranks.tiktoken").write_bytes(ranks)
    return {path.name: path for path in root.iterdir()}


@pytest.mark.parametrize(
    ("name", "encoding", "suffix", "eos_token"),
    [
        ("tokenizer.json", None, ".json", "<|endoftext|>"),
        ("tokenizer.model", None, ".model", "</s>"),
        ("ranks.tiktoken", "llama3", ".json", "<|end_of_text|>"),
        ("ranks.tiktoken", "gpt2", ".json", "<|endoftext|>"),
    ],
)
def test_b23_every_kind_ends_each_document_once(
    sources: Path,
    vocabularies: dict[str, Path],
    tmp_path: Path,
    name: str,
    encoding: str | None,
    suffix: str,
    eos_token,
) -> None:
    prefix = tmp_path / "c"
    record = prepare([sources], prefix, tokenizer=vocabularies[name], tiktoken_encoding=encoding, eval_fraction=0)
    assert tokenizer_path(prefix) == Path(f"{prefix}.tokenizer{suffix}")
    tokenizer = load_tokenizer(tokenizer_path(prefix), eos_token=record.eos_token)
    assert record.eos_token == eos_token
    assert (record.vocab_size, record.eos_id) == (tokenizer.vocab_size, tokenizer.eos_id)
    assert record.tokenizer_sha256 == tokenizer.fingerprint()
    data = IndexedDataset(prefix)
    assert np.array_equal(np.flatnonzero(data.tokens == record.eos_id), np.cumsum(data.lengths) - 1)
    texts = [text.removeprefix("\ufeff").replace("\u2581", " ") if suffix == ".model" else text for text in TEXTS]
    assert [tokenizer.decode(data.sequence(n).tolist()) for n in range(len(data))] == [t + eos_token for t in texts]
    shown = "".join(part["text"] for part in inspect_corpus(prefix)["splits"][0]["sample"])
    assert shown.startswith(TEXTS[0] + eos_token)


def test_another_kind_of_vocabulary_leaves_none_of_the_one_before(
    sources: Path, vocabularies: dict[str, Path], tmp_path: Path
) -> None:
    prefix = tmp_path / "c"
    for name, suffix in (("tokenizer.model", ".model"), ("tokenizer.json", ".json"), ("tokenizer.model", ".model")):
        prepare([sources], prefix, tokenizer=vocabularies[name], eval_fraction=0, overwrite=True)
        assert [path.suffix for path in tmp_path.glob("c.tokenizer.*")] == [suffix]
        record = load_record(prefix)
        assert record is not None
        assert record.tokenizer_sha256 == load_tokenizer(tokenizer_path(prefix)).fingerprint()


def test_how_a_rank_file_is_used_is_only_said_of_one(
    sources: Path, vocabularies: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="tiktoken: has no use without tokenizer"):
        prepare([sources], tmp_path / "c", train_vocab_size=300, tiktoken_encoding="gpt2")
    with pytest.raises(DataError, match="--tiktoken is for tiktoken rank files, which this is not"):
        prepare([sources], tmp_path / "c", tokenizer=vocabularies["tokenizer.json"], tiktoken_encoding="gpt2")
    assert list(tmp_path.iterdir()) == []


def test_the_space_after_a_prompt_is_kept(vocabularies: dict[str, Path]) -> None:
    for name in ("tokenizer.json", "tokenizer.model"):
        tokenizer = load_tokenizer(vocabularies[name])
        prompt, new = tokenizer.encode(["The herons"])[0], tokenizer.encode(["come in"])[0]
        if name == "tokenizer.json":
            new = tokenizer.encode([" come in"])[0]
        assert tokenizer.decode_after(prompt, new) == " come in"
        assert tokenizer.decode_after([tokenizer.eos_id], prompt) == "The herons"


def test_the_tokenizer_beside_a_corpus_ends_documents_as_the_corpus_does(
    sources: Path, vocabularies: dict[str, Path], tmp_path: Path
) -> None:
    prefix, end = tmp_path / "c", "<|eot_id|>"
    ranks = vocabularies["ranks.tiktoken"]
    record = prepare([sources], prefix, tokenizer=ranks, tiktoken_encoding="llama3", eos_token=end, eval_fraction=0)
    assert record.eos_token == end != load_tokenizer(ranks, tiktoken_encoding="llama3").eos_token
    assert load_tokenizer(tokenizer_path(prefix)).eos_token == end
