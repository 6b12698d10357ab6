"""Vocabularies of every kind: the ids that the package of that kind gives, also by the faster ways."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from meshwright.data.errors import DataError
from meshwright.data.vocabulary.byte_level import ByteLevel, _trusted, byte_of_letter, read_byte_level
from meshwright.data.vocabulary.json_file import JsonVocabulary
from meshwright.data.vocabulary.nasty import NASTY_TEXTS
from meshwright.data.vocabulary.patterns import ENCODINGS, pieces
from meshwright.data.vocabulary.rank_file import convert
from meshwright.data.vocabulary.tokenizer import EOS_TOKEN, TextTokenizer, load_tokenizer, train_tokenizer

SOURCES = sorted(Path(json.__file__).parents[1].glob("[ab]*.py"))


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    """Source files of the standard library, and the texts that are hard to tokenize."""
    return [path.read_text(encoding="utf-8", errors="replace") for path in SOURCES] + list(NASTY_TEXTS)


@pytest.fixture(scope="module")
def trained(corpus: list[str]) -> TextTokenizer:
    return train_tokenizer([*corpus[::2], *NASTY_TEXTS], 3000)


def by_tokenizers(body: bytes, texts: list[str]) -> list[list[int]]:
    tokenizer = Tokenizer.from_str(body.decode())
    tokenizer.encode_special_tokens = True
    return [row.ids for row in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def by_tiktoken(vocabulary: ByteLevel, texts: list[str]) -> list[list[int]]:
    engine = tiktoken.Encoding(
        "x", pat_str=vocabulary.pattern, mergeable_ranks=dict(vocabulary.ranks), special_tokens={}
    )
    return [vocabulary.ids[engine.encode_ordinary(text)].tolist() for text in texts]


def fast(tokenizer: TextTokenizer, texts: list[str]) -> list[list[int]]:
    return [ids.tolist() for ids in tokenizer.encode_arrays(texts)]


def byte_level(body: bytes, encoding: str, **changes: Any) -> bytes:
    """The trained vocabulary with another pattern, and other changes of the file."""
    content = json.loads(body)
    pattern = {"Regex": ENCODINGS[encoding].pattern}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, last]}
    return json.dumps(content | changes).encode()


def uses_tiktoken(tokenizer: TextTokenizer) -> bool:
    assert isinstance(tokenizer._vocabulary, JsonVocabulary)
    return tokenizer._vocabulary._fast is not None


@pytest.mark.parametrize("encoding", ["own", *ENCODINGS])
def test_tiktoken_gives_what_tokenizers_gives(trained: TextTokenizer, corpus: list[str], encoding: str) -> None:
    body = trained.body if encoding == "own" else byte_level(trained.body, encoding)
    tokenizer = TextTokenizer(body)
    assert uses_tiktoken(tokenizer)
    assert fast(tokenizer, corpus) == by_tokenizers(body, corpus)


def test_older_ways_to_write_the_same_file_are_known(trained: TextTokenizer, corpus: list[str]) -> None:
    content = json.loads(byte_level(trained.body, "cl100k"))
    content["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}
    content["model"] |= {"merges": [" ".join(merge) for merge in content["model"]["merges"]], "unk_token": EOS_TOKEN}
    del content["model"]["type"]
    tokenizer = TextTokenizer(json.dumps(content).encode())
    assert uses_tiktoken(tokenizer)
    assert fast(tokenizer, corpus[-20:]) == by_tokenizers(tokenizer.body, corpus[-20:])


def test_text_is_composed_where_the_file_says_so(trained: TextTokenizer, corpus: list[str]) -> None:
    body = byte_level(trained.body, "qwen", normalizer={"type": "NFC"})
    tokenizer = TextTokenizer(body)
    assert uses_tiktoken(tokenizer)
    assert fast(tokenizer, corpus) == by_tokenizers(body, corpus)
    assert fast(tokenizer, ["e\u0301"]) == fast(tokenizer, ["\u00e9"])


def test_tokens_that_are_looked_for_in_the_text_are_found(trained: TextTokenizer) -> None:
    tokenizer = Tokenizer.from_str(trained.body.decode())
    tokenizer.add_tokens(["<tool>", " of\tthe "])
    body = tokenizer.to_str().encode()
    texts = ["say <tool> now", "nothing", "one of\tthe two" + " and more" * 30_000]
    ours = TextTokenizer(body)
    assert uses_tiktoken(ours)
    assert fast(ours, texts) == by_tokenizers(body, texts)
    assert [tokenizer.token_to_id("<tool>") in row for row in fast(ours, texts)] == [True, False, False]


def test_tokens_that_are_looked_for_in_composed_text_are_found(trained: TextTokenizer) -> None:
    tokenizer = Tokenizer.from_str(byte_level(trained.body, "qwen", normalizer={"type": "NFC"}).decode())
    tokenizer.add_tokens([AddedToken("e\u0301t\u00e9", normalized=True)])
    body = tokenizer.to_str().encode()
    texts = ["x \u00e9t\u00e9 y", "x e\u0301t\u00e9 y", "x e\u0301te\u0301 y", "\u00e9te\u0301"]
    ours = TextTokenizer(body)
    assert uses_tiktoken(ours)
    assert fast(ours, texts) == by_tokenizers(body, texts)
    assert all(tokenizer.token_to_id("e\u0301t\u00e9") in row for row in fast(ours, texts))


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}},
    ],
)
def test_what_is_not_known_to_be_equal_is_left_to_tokenizers(
    trained: TextTokenizer, corpus: list[str], changes: dict
) -> None:
    body = json.dumps(json.loads(trained.body) | changes).encode()
    tokenizer = TextTokenizer(body)
    assert not uses_tiktoken(tokenizer)
    assert fast(tokenizer, corpus[-20:]) == by_tokenizers(body, corpus[-20:])


def small_bpe(merges: list[tuple[str, str]], **model: Any) -> dict[str, Any]:
    letters = list(byte_of_letter())
    vocab = {token: number for number, token in enumerate(dict.fromkeys([*letters, *map("".join, merges)]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


def test_merges_that_tiktoken_would_do_otherwise_are_seen() -> None:
    assert read_byte_level(small_bpe([("b", "c"), ("a", "bc")])) is not None
    # "abc" is listed of ab and c, but bc is made first: tiktoken would put a and bc together.
    assert read_byte_level(small_bpe([("b", "c"), ("a", "b"), ("ab", "c")])) is None
    # "abc" is never made; tiktoken would take it where it is a whole word, tokenizers only with ignore_merges.
    stuck = [("b", "c"), ("c", "d"), ("a", "b"), ("ab", "cd"), ("bc", "d")]
    assert read_byte_level(small_bpe(stuck)) is None


def test_tokens_added_by_hand_that_no_bytes_spell_are_left_to_tokenizers() -> None:
    content = small_bpe([("b", "c")])
    content["model"]["vocab"] |= {"\u4e2d": 257, "\u6587": 258, "\u4e2d\u6587": 259}
    content["model"]["merges"].append(["\u4e2d", "\u6587"])
    assert read_byte_level(content) is None


def test_random_vocabularies_give_the_same_or_are_refused() -> None:
    rng = random.Random(5)
    texts = ["".join(rng.choices("abc", k=rng.randint(1, 30))) for _ in range(100)]
    taken = 0
    for _ in range(150):
        tokens = ["a", "b", "c"]
        merges: list[tuple[str, str]] = []
        for _ in range(rng.randint(1, 12)):
            merges.append((rng.choice(tokens), rng.choice(tokens)))
            tokens.append("".join(merges[-1]))
        content = small_bpe(merges, ignore_merges=rng.random() < 0.5)
        vocabulary = read_byte_level(content)
        if vocabulary is None:
            continue
        taken += 1
        body = json.dumps(content).encode()
        assert by_tiktoken(vocabulary, texts) == by_tokenizers(body, texts)
    assert 20 < taken < 150


def test_all_characters_count_alike_in_both_packages() -> None:
    """Each trusted character between letters, digits, spaces and marks, with a vocabulary of all pairs of bytes."""
    rng = random.Random(1)
    letters = list(byte_of_letter())
    pairs = [(left, right) for left in letters for right in letters]
    rng.shuffle(pairs)
    body = json.dumps(small_bpe(pairs)).encode()
    # Not the large planes of ideographs and of private use, whose characters have one class.
    numbers = [n for n in (*range(0x80, 0x3400), *range(0xA000, 0xAC10), *range(0xF900, 0x20010)) if _trusted(chr(n))]
    text = "".join(f"a{char}B1{char} '{char}!{char}\n" for char in map(chr, numbers))
    parts = [part for at in range(0, len(text), 100_000) for part in pieces(text[at : at + 100_000])]
    # Its pattern tells apart all classes that the others do.
    body = byte_level(body, "o200k")
    vocabulary = read_byte_level(json.loads(body))
    assert vocabulary is not None
    assert by_tiktoken(vocabulary, parts) == by_tokenizers(body, parts)


def rank_file(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


@pytest.fixture(scope="module")
def ranks(trained: TextTokenizer) -> dict[bytes, int]:
    """The trained merges as ranks from 0, and tokens that only a whole word gives, as Llama 3 has them."""
    letters = byte_of_letter()
    vocab = json.loads(trained.body)["model"]["vocab"]
    tokens = [bytes(map(letters.__getitem__, token)) for token in vocab if token != EOS_TOKEN]
    tokens += [" \u4e2d\u6587\u5b57".encode(), b" Zq7", b"xqzv", b"qz"]
    return {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_rank_file_gives_what_tiktoken_gives(
    ranks: dict[bytes, int], corpus: list[str], tmp_path: Path, encoding: str
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(rank_file(ranks))
    tokenizer = load_tokenizer(tmp_path, tiktoken_encoding=encoding)
    specials = {name: len(ranks) + after for name, after in ENCODINGS[encoding].specials}
    engine = tiktoken.Encoding("x", pat_str=ENCODINGS[encoding].pattern, mergeable_ranks=ranks, special_tokens=specials)
    texts = [*corpus, "xqzv qz aqz \u4e2d\u6587\u5b57 Zq7"]
    expected = [engine.encode_ordinary(text) for text in texts]
    assert fast(tokenizer, texts) == expected
    assert by_tokenizers(tokenizer.body, texts) == expected
    assert tokenizer.vocab_size == engine.n_vocab
    assert (tokenizer.eos_token, tokenizer.eos_id) == (ENCODINGS[encoding].end, specials[ENCODINGS[encoding].end])
    assert tokenizer.decode(expected[0]) == texts[0]


def test_random_rank_files_are_converted_exactly() -> None:
    rng = random.Random(7)
    texts = ["".join(rng.choices("abc", k=rng.randint(1, 30))) for _ in range(100)]
    for _ in range(50):
        # No trained vocabulary has parts that come after the whole; these have.
        tokens = {"".join(rng.choices("abc", k=rng.randint(2, 6))).encode() for _ in range(rng.randint(1, 25))}
        order = [bytes([byte]) for byte in range(256)] + rng.sample(sorted(tokens), len(tokens))
        ranks = {token: rank for rank, token in enumerate(order)}
        engine = tiktoken.Encoding("x", pat_str=ENCODINGS["cl100k"].pattern, mergeable_ranks=ranks, special_tokens={})
        body = convert(rank_file(ranks), "cl100k", "x.tiktoken")
        assert by_tokenizers(body, texts) == [engine.encode_ordinary(text) for text in texts]
        assert fast(TextTokenizer(body), texts) == by_tokenizers(body, texts)


def test_special_ids_are_the_published_ones() -> None:
    def ids(encoding: str, free: int) -> dict[str, int]:
        return {name: free + after for name, after in ENCODINGS[encoding].specials}

    assert ids("gpt2", 50256) == {"<|endoftext|>": 50256}
    assert ids("cl100k", 100256)["<|endoftext|>"] == 100257
    assert ids("cl100k", 100256)["<|endofprompt|>"] == 100276
    assert ids("o200k", 199998) == {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    llama = ids("llama3", 128000)
    assert [llama[f"<|{name}|>"] for name in ("begin_of_text", "end_of_text", "eot_id")] == [128000, 128001, 128009]
    assert (llama["<|reserved_special_token_0|>"], llama["<|reserved_special_token_250|>"]) == (128002, 128255)
    assert (ids("qwen", 151643)["<|endoftext|>"], ids("qwen", 151643)["<|extra_204|>"]) == (151643, 151850)


@pytest.mark.parametrize(
    ("change", "encoding", "message"),
    [
        ({}, None, r"does not say how text is cut into words: name it with --tiktoken gpt2\|cl100k\|"),
        ({}, "gpt5", r"--tiktoken gpt5: not known; legal: gpt2, cl100k, o200k, llama3, qwen"),
        ({b"a": None}, "gpt2", r"no token for the single byte 0x61"),
        ({b"zz": 5}, "gpt2", r"two tokens have the same rank"),
        ({b"a": 10**6}, "cl100k", r"id \d+ is taken, where cl100k has '<\|endoftext\|>'"),
    ],
)
def test_rank_files_that_cannot_be_used_are_refused(
    ranks: dict[bytes, int], tmp_path: Path, change: dict, encoding: str | None, message: str
) -> None:
    changed = {token: rank for token, rank in (ranks | change).items() if rank is not None}
    (tmp_path / "x.tiktoken").write_bytes(rank_file(dict(sorted(changed.items()))))
    with pytest.raises(DataError, match=message):
        load_tokenizer(tmp_path, tiktoken_encoding=encoding)


def test_a_broken_rank_file_is_refused_with_its_line(ranks: dict[bytes, int], tmp_path: Path) -> None:
    (tmp_path / "x.tiktoken").write_bytes(rank_file(ranks) + b"YWJj\n")
    with pytest.raises(DataError, match=rf"x\.tiktoken:{len(ranks) + 1}: not a line of a tiktoken rank file: b'YWJj'"):
        load_tokenizer(tmp_path, tiktoken_encoding="gpt2")


def test_long_texts_are_cut_only_where_nothing_changes(trained: TextTokenizer, corpus: list[str]) -> None:
    long = "".join(corpus)
    cut = list(pieces(long))
    assert len(cut) > 2
    assert "".join(cut) == long
    for encoding in ENCODINGS:
        body = byte_level(trained.body, encoding)
        assert fast(TextTokenizer(body), [long]) == by_tokenizers(body, [long])


@pytest.mark.parametrize("run", [" ", "a", "\t\u00a0"])
def test_long_runs_have_no_limit(trained: TextTokenizer, run: str) -> None:
    text = "x " + run * (600_000 // len(run)) + " y"
    assert fast(trained, [text]) == by_tokenizers(trained.body, [text])
