"""Sentencepiece models: the ids that the library gives, also word by word."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from meshwright.data.errors import DataError
from meshwright.data.vocabulary import sentencepiece_file
from meshwright.data.vocabulary.nasty import NASTY_TEXTS
from meshwright.data.vocabulary.tokenizer import TextTokenizer, load_tokenizer

SOURCES = sorted(Path(json.__file__).parents[1].glob("a*.py"))
LLAMA2 = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama2": LLAMA2,
    "bpe": {"model_type": "bpe"},
    "bpe without bytes": LLAMA2 | {"byte_fallback": False},
    "bpe across words": LLAMA2 | {"split_by_whitespace": False, "max_sentencepiece_length": 20},
    "bpe with symbols": LLAMA2 | {"user_defined_symbols": ["<tool>", "of\u2581the"]},
    "unigram": {"model_type": "unigram"},
    "unigram with bytes": {"model_type": "unigram", "byte_fallback": True, "add_dummy_prefix": False},
}


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return [path.read_text(encoding="utf-8", errors="replace") for path in SOURCES] + list(NASTY_TEXTS)


@pytest.fixture(scope="module")
def models(corpus: list[str]) -> dict[str, bytes]:
    lines = [line for text in [*corpus[:20], *NASTY_TEXTS] for line in text.splitlines() if line.strip()]
    return {name: train(lines, **options) for name, options in KINDS.items()}


def train(lines: list[str], **options: Any) -> bytes:
    body = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=body,
        minloglevel=2,
        num_threads=1,
        character_coverage=0.99,
        **{"vocab_size": 700, **options},
    )
    return body.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library(
    models: dict[str, bytes], corpus: list[str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentencepiece_file, "PIECE_CHARACTERS", 1000)
    monkeypatch.setattr(sentencepiece_file, "KNOWN_WORDS", 2000)
    texts = [
        *corpus,
        "x",
        " ",
        "  ",
        "x ",
        "x  ",
        " x ",
        "\u2581",
        "\u2581 x\u2581 ",
        " of the <tool>of the",
        "a" * 3000 + " ",
    ]
    tokenizer = TextTokenizer(models[kind], source="x.model")
    library = sentencepiece.SentencePieceProcessor(model_proto=models[kind])
    expected = [library.encode(text) for text in texts]
    assert tokenizer.encode(texts) == expected
    for _ in range(2):  # words met before
        assert [ids.tolist() for ids in tokenizer.encode_arrays(texts)] == expected
    assert tokenizer._vocabulary._words_stand_alone == (kind in ("llama2", "bpe without bytes"))
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.eos_token) == (700, library.eos_id(), "</s>")


def test_special_tokens_are_ordinary_text_and_are_shown(models: dict[str, bytes]) -> None:
    tokenizer = TextTokenizer(models["llama2"], source="x.model")
    (ids,) = tokenizer.encode(["say </s> and <s>"])
    assert {tokenizer.eos_id, 1}.isdisjoint(ids)
    assert tokenizer.decode([*ids, tokenizer.eos_id, 700, *tokenizer.encode(["next"])[0]]) == "say </s> and <s></s>next"


def test_a_model_travels_to_other_processes(models: dict[str, bytes]) -> None:
    tokenizer = TextTokenizer(models["llama2"], source="x.model")
    again = pickle.loads(pickle.dumps(tokenizer))
    assert (again.eos_id, again.encode(["herons"])) == (tokenizer.eos_id, tokenizer.encode(["herons"]))


def test_bytes_survive(models: dict[str, bytes]) -> None:
    tokenizer = TextTokenizer(models["llama2"], source="x.model")
    for text in NASTY_TEXTS:
        assert tokenizer.decode(tokenizer.encode([text])[0]) == text.replace("\u2581", " ")


def test_files_that_cannot_be_used_are_refused(models: dict[str, bytes], corpus: list[str], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(models["llama2"])
    assert load_tokenizer(tmp_path).body == models["llama2"]
    with pytest.raises(DataError, match=r"tokenizer\.model: has no token '<end>' \(--eos-token\)"):
        load_tokenizer(path, eos_token="<end>")
    with pytest.raises(DataError, match=r"--tiktoken is for tiktoken rank files, which this is not"):
        load_tokenizer(path, tiktoken_encoding="gpt2")
    path.write_bytes(b"\x0a\xff nothing")
    with pytest.raises(DataError, match=r"neither a tokenizer.json, nor a sentencepiece model, nor a tiktoken rank"):
        load_tokenizer(path)
    path.write_bytes(models["llama2"].replace("\u2581the".encode(), "\u2581t".encode() + b"\xff\xfe"))
    with pytest.raises(DataError, match=r"tokenizer\.model: a damaged sentencepiece model: the text of a piece"):
        load_tokenizer(path)
    path.write_bytes(train(corpus[0].splitlines(), eos_id=-1, vocab_size=300, user_defined_symbols=["<end>"]))
    with pytest.raises(DataError, match=r"which token ends a document\? name it with --eos-token; .*: <s>"):
        load_tokenizer(path)
    with pytest.raises(DataError, match="'<end>' in a text becomes the token itself, which would end the document"):
        load_tokenizer(path, eos_token="<end>")
    path.write_bytes(train(["< unk > on a mat"] * 50, model_type="bpe", vocab_size=24))
    with pytest.raises(DataError, match="what is unknown in a text becomes the token '<unk>', which would end the"):
        load_tokenizer(path, eos_token="<unk>")
    with pytest.raises(DataError, match=r"has no tokenizer\.json, tokenizer\.model or \*\.tiktoken"):
        load_tokenizer(tmp_path.parent / path.parent.name / "..")
