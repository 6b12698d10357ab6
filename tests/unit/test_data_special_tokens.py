"""Special tokens spelled in texts, the token that ends a text, and what files beside a vocabulary say of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from meshwright.config.schema import DatasetConfig
from meshwright.data.errors import DataError
from meshwright.data.preparation.prepare import prepare
from meshwright.data.vocabulary.nasty import NASTY_TEXTS
from meshwright.data.vocabulary.tokenizer import EOS_TOKEN, TextTokenizer, load_tokenizer, train_tokenizer
from meshwright.train.vocabularies import check_vocabularies
from sentencepiece_models import llama_2_model

LINES = ["the river is low in the summer", "the herons come to the river", "<pad> is a word</s> of the net"] * 9
SPECIALS = ["<pad>", "</s>", "<unk>"]


def special(number: int, content: str, *, role: bool = True) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": role}


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """A byte-level BPE with the words of the lines, and another special token."""
    content: dict[str, Any] = json.loads(train_tokenizer(LINES, 300).body)
    content["added_tokens"].append(special(len(content["model"]["vocab"]), "<|im_end|>"))
    return content


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("\u0120the", "' the' in a text becomes the token '\u0120the', which would end the document there"),
        ("\u0120", "' ' in a text becomes the token '\u0120'"),
        ("\u00c3", "a part of a character becomes the token '\u00c3'"),
        ("EOT", r"'\\nEOT\\n' in a text becomes the token 'EOT'"),
    ],
)
def test_an_end_that_some_text_becomes_is_refused(content: dict[str, Any], end: str, message: str) -> None:
    vocab = content["model"]["vocab"]
    model = content["model"] | {"ignore_merges": True, "vocab": vocab | {"EOT": len(vocab)}}
    changes = {"model": model, "added_tokens": [special(len(vocab), "EOT")]}
    changes["pre_tokenizer"] = content["pre_tokenizer"] | {"add_prefix_space": end == "EOT"}
    with pytest.raises(DataError, match=message):
        TextTokenizer(json.dumps(content | changes).encode(), end)


def test_a_byte_of_sentencepiece_ends_no_text() -> None:
    model = llama_2_model(LINES, 300)
    with pytest.raises(DataError, match=r"in a text becomes the token '<0x0A>'"):
        TextTokenizer(model, "<0x0A>")
    with pytest.raises(DataError, match=r"a part of a character becomes the token '<0xE4>'"):
        TextTokenizer(model, "<0xE4>")
    assert TextTokenizer(model).eos_token == "</s>"


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def words(model: Any, trainer: Any) -> Tokenizer:
    tokenizer = Tokenizer(model(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(LINES, trainer(vocab_size=80, special_tokens=SPECIALS, show_progress=False))
    return tokenizer


KINDS = {
    "unigram": unigram,
    "words": lambda: words(models.WordLevel, trainers.WordLevelTrainer),
    "pieces of words": lambda: words(models.WordPiece, trainers.WordPieceTrainer),
}


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_that_are_pieces_of_the_model_are_no_text(kind: str) -> None:
    theirs = KINDS[kind]()
    theirs.add_special_tokens(["<extra>"])
    theirs.encode_special_tokens = True
    tokenizer = TextTokenizer(theirs.to_str().encode())
    pad, end, unknown = (theirs.token_to_id(token) for token in SPECIALS)
    assert (tokenizer.eos_token, tokenizer.eos_id, tokenizer.vocab_size) == ("</s>", end, theirs.get_vocab_size())
    spelled = ["</s>", "a <pad> b", "x</s>y", " </s> ", "<extra>"]
    assert any({pad, end}.intersection(theirs.encode(text).ids) for text in spelled)
    assert not any({pad, end}.intersection(ids) for ids in tokenizer.encode(spelled))
    texts = [*LINES[:2], *(text for text in NASTY_TEXTS if not any(token in text for token in SPECIALS))]
    assert tokenizer.encode(texts) == [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    assert any(unknown in ids for ids in tokenizer.encode(texts))
    assert tokenizer.decode([pad, *tokenizer.encode(["the"])[0], end]).replace(" ", "") == "<pad>the</s>"


def test_ids_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"</s>": 0, "a": 3_000_000_000}, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [special(0, "</s>")], "model": model}))
    with pytest.raises(DataError, match=r"tokenizer\.json: has the id 3000000000; ids are 32-bit, to 2147483647"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"eos_token": ["</s>"]}', r'eos_token is of type list; legal: the text of a token, or \{"content": text\}'),
        ('{"eos_token": {"content": 3}}', "eos_token is of type dict; legal"),
        ('{"eos_token": 3}', "eos_token is of type int; legal"),
        ("[]", "its content is of type list, not a JSON object"),
        ('{"a": ' * 100_000, "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"added_tokens_decoder": []}', "added_tokens_decoder is of type list, not a JSON object"),
        ('{"added_tokens_decoder": {"7": "<x>"}}', r"added_tokens_decoder\.7 is of type str, not a JSON object"),
    ],
)
def test_a_damaged_tokenizer_config_is_refused(
    content: dict[str, Any], tmp_path: Path, config: str, message: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(DataError, match=rf"tokenizer_config\.json: {message}"):
        load_tokenizer(tmp_path)


def test_tokens_that_only_transformers_would_find_are_refused(content: dict[str, Any], tmp_path: Path) -> None:
    def told(**files: Any) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, what in {"tokenizer": content, **files}.items():
            (folder / f"{name}.json").write_text(json.dumps(what))
        try:
            return load_tokenizer(folder).eos_token
        except DataError as error:
            return str(error)

    size = len(content["model"]["vocab"]) + 1
    listed = {str(size - 1): special(size - 1, "<|im_end|>", role=False), str(size): special(size, "<mask>")}
    assert told(tokenizer_config={"added_tokens_decoder": listed}) == EOS_TOKEN
    listed[str(size + 1)] = special(size + 1, "<tool>", role=False)
    refusal = "lists the token '<tool>', which tokenizer.json does not find in a text, but transformers does"
    assert refusal in told(tokenizer_config={"added_tokens_decoder": listed})
    added = {"<|im_end|>": size - 1, "<mask>": size, "<image>": size + 1}
    roles = {"mask_token": {"content": "<mask>"}, "additional_special_tokens": ["<image>"]}
    assert told(added_tokens=added, special_tokens_map=roles) == EOS_TOKEN
    assert told(added_tokens=added, tokenizer_config=roles) == EOS_TOKEN
    assert "added_tokens.json: lists the token '<mask>'" in told(added_tokens=added)
    assert refusal in told(added_tokens=added | {"<tool>": size + 2}, special_tokens_map=roles)


def test_training_takes_a_tokenizer_only_if_it_ends_texts_as_the_data_does(
    content: dict[str, Any], tmp_path: Path
) -> None:
    source, prefix, end = tmp_path / "t.json", tmp_path / "c", "<|im_end|>"
    (tmp_path / "a.txt").write_text("\n".join(LINES))

    def told(tokenizer: Path) -> str:
        try:
            check_vocabularies(DatasetConfig.model_validate({"paths": (str(prefix),), "tokenizer": str(tokenizer)}))
            return ""
        except DataError as error:
            return str(error)

    source.write_text(json.dumps(content))
    prepare([tmp_path / "a.txt"], prefix, tokenizer=source, eos_token=end, eval_fraction=0)
    beside = Path(f"{prefix}.tokenizer.json")
    assert told(beside) == ""
    assert told(source) == (
        f"dataset.tokenizer: {source} ends a text with '<|endoftext|>', but {prefix} with '<|im_end|>': what is"
        f" generated would not end; name {beside}, which has the same ids and ends texts so"
    )
    other = tmp_path / "folder" / "tokenizer.json"
    other.parent.mkdir()
    other.write_text(json.dumps(content))
    (other.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    assert told(other) == told(other.parent) == ""
    (other.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<gone>"}))
    assert f"has no token '<gone>' (--eos-token); the one of {prefix} is {beside}" in told(other)
