"""Preparation: tokenizer, splits, end-of-text, the same bytes whatever the number of workers."""

import dataclasses
import errno
import inspect
import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from meshwright.config.corpus import load_corpus_config
from meshwright.data.dataset import TokenDataset
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset
from meshwright.data.inspect import inspect_corpus
from meshwright.data.loss_mask import IGNORED
from meshwright.data.preparation.directories import Directories
from meshwright.data.preparation.prepare import OUTPUTS, prepare
from meshwright.data.preparation.request import Request
from meshwright.data.preparation.shards import complete_file
from meshwright.data.preparation.stages import ShardStage
from meshwright.data.record import load_record
from meshwright.data.vocabulary.tokenizer import EOS_TOKEN, TextTokenizer, load_tokenizer, train_tokenizer

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "wizards", "quietly", "box"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 documents: one file each, then 100 rows of a .jsonl."""
    root = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(1)
    documents = [" ".join(rng.choice(WORDS, rng.integers(1, 90))) + f" {n}." for n in range(300)]
    for number, text in enumerate(documents[:200]):
        (root / f"{number:03}.txt").write_text(text)
    (root / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents[200:]))
    return root


@pytest.fixture(scope="module")
def tokenizer_file(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    file.write_bytes(train_tokenizer([path.read_text() for path in texts.glob("*.txt")], 300).body)
    return file


def outputs(prefix: Path) -> dict[str, bytes]:
    paths = {suffix: Path(f"{prefix}{suffix}") for suffix in OUTPUTS}
    return {suffix: path.read_bytes() for suffix, path in paths.items() if path.exists()}


def test_workers_change_no_byte(
    texts: Path, tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small chunks, so that the workers finish out of order.
    monkeypatch.setattr("meshwright.data.preparation.encode.CHUNK_DOCUMENTS", 7)
    for workers in (0, 1, 3):
        prepare([texts], tmp_path / f"w{workers}", tokenizer=tokenizer_file, eval_fraction=0.1, workers=workers)
    assert outputs(tmp_path / "w0") == outputs(tmp_path / "w1") == outputs(tmp_path / "w3")
    assert len(list(tmp_path.iterdir())) == 3 * len(outputs(tmp_path / "w0"))


def test_every_document_is_in_one_split_with_its_text_and_counts(texts: Path, tmp_path: Path) -> None:
    record = prepare([texts], tmp_path / "c", train_vocab_size=400, eval_fraction=0.1)
    tokenizer = load_tokenizer(tmp_path / "c.tokenizer.json")
    train, held_out = IndexedDataset(tmp_path / "c"), IndexedDataset(tmp_path / "c.eval")
    decoded = [tokenizer.decode(data.sequence(n)) for data in (train, held_out) for n in range(len(data))]
    expected = [path.read_text() for path in sorted(texts.glob("*.txt"))]
    expected += [json.loads(line)["text"] for line in (texts / "rows.jsonl").read_text().splitlines()]
    assert sorted(decoded) == sorted(text + EOS_TOKEN for text in expected)
    assert record.train.documents + record.eval.documents == 300
    assert 10 < record.eval.documents < 60
    assert (record.train.tokens, record.eval.tokens) == (len(train.tokens), len(held_out.tokens))
    assert record.train.utf8_bytes + record.eval.utf8_bytes == sum(len(text) for text in expected)
    assert record == load_record(tmp_path / "c") == load_record(tmp_path / "c.eval")
    assert record.tokenizer_sha256 == tokenizer.fingerprint()


def test_the_split_does_not_depend_on_order(texts: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    files = sorted(texts.iterdir())
    for name, inputs in (("forward", files), ("backward", files[::-1])):
        prepare(inputs, tmp_path / name, tokenizer=tokenizer_file, eval_fraction=0.1)
    forward, backward = (IndexedDataset(tmp_path / f"{name}.eval") for name in ("forward", "backward"))
    texts_of = [sorted(data.sequence(n).tolist() for n in range(len(data))) for data in (forward, backward)]
    assert texts_of[0] == texts_of[1]
    assert forward.tokens.tolist() != backward.tokens.tolist()


def test_b23_every_document_ends_with_one_supervised_end_of_text(texts: Path, tokenizer_file: Path, tmp_path) -> None:
    (tmp_path / "tricky.txt").write_text(f"a file about {EOS_TOKEN} and what it does{EOS_TOKEN}")
    inputs = [texts, tmp_path / "tricky.txt"]
    record = prepare(inputs, tmp_path / "c", tokenizer=tokenizer_file, eval_fraction=0)
    data = IndexedDataset(tmp_path / "c")
    ends = np.cumsum(data.lengths) - 1
    assert np.array_equal(np.flatnonzero(data.tokens == record.eos_id), ends)
    windows = TokenDataset([tmp_path / "c"], 16, vocab_size=record.vocab_size, pad_last=True)
    _, labels = windows.batch(np.arange(windows.num_samples))
    assert int((labels == record.eos_id).sum()) == record.train.documents == 301
    # Only the padding after the last end-of-text is not supervised.
    assert np.flatnonzero(labels.ravel() == IGNORED).tolist() == list(range(len(data.tokens) - 1, labels.size))


def test_a_tokenizer_that_truncates_and_pads_does_neither_here(tokenizer_file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded, plain = load_tokenizer(tmp_path), load_tokenizer(tokenizer_file)
    for text in ("fox", "the quick brown fox jumps over a lazy dog"):
        assert loaded.encode([text]) == plain.encode([text])


def test_any_bytes_survive_the_trained_tokenizer() -> None:
    tokenizer = train_tokenizer(["tiny"], 257)
    text = "caf\u00e9 \U0001f600\x00\r\n\t \u4e2d\u6587" + "".join(map(chr, range(256)))
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_id == 0
    assert max(ids) < tokenizer.vocab_size == 257


def test_end_of_text_token_is_found_or_asked_for(tokenizer_file: Path, tmp_path: Path) -> None:
    body = tokenizer_file.read_text().replace(EOS_TOKEN, "<end>")
    (tmp_path / "tokenizer.json").write_text(body)
    with pytest.raises(DataError, match=r"name it with --eos-token; its special tokens: <end>"):
        load_tokenizer(tmp_path)
    with pytest.raises(DataError, match=r"has no token '<stop>' \(--eos-token\)"):
        load_tokenizer(tmp_path, eos_token="<stop>")
    assert load_tokenizer(tmp_path, eos_token="<end>").eos_id == 0
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    assert load_tokenizer(tmp_path).eos_token == "<end>"


def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"content": "</s>"}]}')
    with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("not json")
    with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(DataError, match=r"none\.json: no such file"):
        load_tokenizer(tmp_path / "none.json")
    with pytest.raises(DataError, match=r"vocabulary of 256 is too small: .* at least 257"):
        train_tokenizer([], 256)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "t.json"}, "give either tokenizer or train_tokenizer"),
        ({"train_vocab_size": None}, "give either tokenizer or train_tokenizer"),
        ({"train_vocab_size": 100}, "too small"),
        ({"train_vocab_size": 99999999999}, "too large: training reserves memory for every id"),
        ({"eos_token": "x"}, "eos_token: has no use without tokenizer"),
        ({"deduplication": Deduplication(exact=True, rows=3)}, "rows: has no use without deduplicate.near"),
        ({"eval_fraction": 1.0}, "must be at least 0 and below 1"),
        ({"output": ""}, "is a directory; give a prefix, such as .*corpus"),
        ({"output": "x.eval.bin"}, r"x\.eval: ends in \.eval, as held-out files do"),
    ],
)
def test_wrong_requests_write_nothing(texts: Path, tmp_path: Path, change: dict, message: str) -> None:
    output = tmp_path / change.pop("output", "c")
    with pytest.raises(DataError, match=message):
        prepare([texts], output, **{"train_vocab_size": 300, **change})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_corpus_is_replaced_only_on_request(texts: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    prepare([texts], tmp_path / "c", tokenizer=tokenizer_file, eval_fraction=0.1)
    before = outputs(tmp_path / "c")
    (tmp_path / "c.mask").mkdir()
    with pytest.raises(DataError, match=r"c\.mask: is a directory; choose another --output"):
        prepare([texts], tmp_path / "c", tokenizer=tokenizer_file, overwrite=True)
    (tmp_path / "c.mask").rmdir()
    with pytest.raises(DataError, match="exists already; choose another --output, or replace it with --overwrite"):
        prepare([texts], tmp_path / "c", tokenizer=tokenizer_file)
    assert outputs(tmp_path / "c") == before
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\nbroken')
    with pytest.raises(DataError, match=r"bad\.jsonl:2"):
        prepare([tmp_path / "bad.jsonl"], tmp_path / "c", tokenizer=tokenizer_file, overwrite=True, workers=1)
    assert outputs(tmp_path / "c") == before
    prepare([texts / "000.txt"], tmp_path / "c", tokenizer=tokenizer_file, eval_fraction=0, overwrite=True)
    assert IndexedDataset(tmp_path / "c").documents == 1
    # The old held-out split does not belong to the new corpus.
    assert not (tmp_path / "c.eval.idx").exists()


def test_inspect_reports_both_splits_and_the_first_text(texts: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    record = prepare([texts], tmp_path / "c", tokenizer=tokenizer_file, eval_fraction=0.1)
    report = inspect_corpus(tmp_path / "c.bin")
    train, held_out = report["splits"]
    assert (train["documents"], train["tokens"]) == (record.train.documents, record.train.tokens)
    assert held_out["documents"] == record.eval.documents
    assert train["bin_bytes"] == 2 * record.train.tokens
    assert (texts / "000.txt").read_text().startswith(train["sample"][0]["text"] + train["sample"][1]["text"])
    assert train["sample"][2]["text"].endswith(EOS_TOKEN)
    assert json.loads(json.dumps(report)) == report | {"record": json.loads(json.dumps(report["record"]))}
    (tmp_path / "c.tokenizer.json").unlink()
    assert inspect_corpus(tmp_path / "c")["splits"][0]["sample"][0]["text"] is None


def test_a_tokenizer_travels_as_bytes(tokenizer_file: Path) -> None:
    loaded = load_tokenizer(tokenizer_file)
    again = TextTokenizer(loaded.body, loaded.eos_token)
    assert again.fingerprint() == loaded.fingerprint()
    assert again.encode(["quick wizards"]) == loaded.encode(["quick wizards"])


def test_tokens_are_copied_where_the_kernel_cannot_and_stay_in_their_places(
    texts: Path, tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.data.preparation.shards.SHARD_BYTES", 3000)
    prepare([texts], tmp_path / "a", tokenizer=tokenizer_file, eval_fraction=0.1)
    calls = []

    def only_at_first(*arguments: int) -> int:
        calls.append(arguments)
        if len(calls) > 2:
            raise OSError(errno.EXDEV, "not on this file system")
        return copy(*arguments)

    copy = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", only_at_first)
    prepare([texts], tmp_path / "b", tokenizer=tokenizer_file, eval_fraction=0.1)
    assert len(calls) > 4
    assert {**outputs(tmp_path / "a"), ".report.json": b""} == {**outputs(tmp_path / "b"), ".report.json": b""}


def test_ids_that_end_early_are_told_of(
    texts: Path, tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *arguments: 0)
    prepare([texts], tmp_path / "a", tokenizer=tokenizer_file)
    monkeypatch.setattr(os, "pread", lambda *arguments: b"")
    with pytest.raises(OSError, match=r"the ids of a shard end early: '.*corpus(\.eval)?\.bin'"):
        prepare([texts], tmp_path / "b", tokenizer=tokenizer_file)


def test_an_input_that_changes_meanwhile_is_no_corpus_of_old_and_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (json.dumps({"text": f"document {name}"}) + "\n" for name in "ab")
    path = tmp_path / "in.jsonl"
    path.write_text(one + one + other)
    run = ShardStage.run

    def change_and_run(stage: ShardStage, *arguments: Any, **options: Any) -> None:
        if stage.title == "tokenizing":
            path.write_text(one + other + one)
        run(stage, *arguments, **options)

    settings = {"train_vocab_size": 300, "eval_fraction": 0, "deduplication": Deduplication(exact=True)}
    monkeypatch.setattr(ShardStage, "run", change_and_run)
    with pytest.raises(DataError, match=r"in\.jsonl: has changed since this command began; run it again"):
        prepare([path], tmp_path / "c", **settings)
    assert outputs(tmp_path / "c") == {}
    monkeypatch.setattr(ShardStage, "run", run)
    assert prepare([path], tmp_path / "c", **settings).train.documents == 2


def test_results_that_name_files_are_kept_for_the_same_names_only(
    texts: Path, tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(texts)
    request = Request(inputs=("000.txt",), output=tmp_path / "c", tokenizer=tokenizer_file)
    tokenizer = load_tokenizer(tokenizer_file)
    names = {
        Directories.of(request, [Path(name)], tokenizer, tmp_path).signatures
        for name in ("000.txt", texts / "000.txt", "000.txt")
    }
    assert len(names) == 2


def test_results_of_another_form_are_not_gone_on_from(
    texts: Path, tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(inputs=(texts,), output=tmp_path / "c", tokenizer=tokenizer_file)
    found = [texts / "000.txt"], load_tokenizer(tokenizer_file), tmp_path
    before = Directories.of(request, *found).all()
    monkeypatch.setattr("meshwright.data.preparation.directories.FORM", 1)
    assert not set(before) & set(Directories.of(request, *found).all())


def test_files_in_the_making_have_names_of_their_own(tmp_path: Path) -> None:
    """Also those of two processes of one number on machines of one name."""
    with complete_file(tmp_path / "a") as one, complete_file(tmp_path / "a") as other:
        one.write(b"1")
        other.write(b"1")
        assert one.name != other.name
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_array_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    before, size = resource.getrlimit(resource.RLIMIT_FSIZE), 1 << 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        told = r"cannot be written: \d+ requested and \d+ written: '.*a\.npy'"
        with pytest.raises(OSError, match=told), complete_file(tmp_path / "a.npy") as file:
            np.save(file, np.zeros(2 * size, np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_options_and_functions_have_the_same_defaults() -> None:
    given = {"inputs": ("a",), "output": "b"}
    request = Request.of(load_corpus_config(None, given))
    assert request == Request(inputs=("a",), output=Path("b"))
    parameters = inspect.signature(prepare).parameters
    for field in dataclasses.fields(Request):
        assert field.name in given or parameters[field.name].default == field.default


def test_what_an_earlier_corpus_has_is_left_out(texts: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    settings = {"tokenizer": tokenizer_file, "eval_fraction": 0, "deduplication": Deduplication(exact=True)}
    prepare([texts], tmp_path / "a", **settings)
    (tmp_path / "new.txt").write_text("a new fox")
    record = prepare([texts, tmp_path / "new.txt"], tmp_path / "b", against=[tmp_path / "a.bin"], **settings)
    assert (record.train.documents, record.dropped["exact_duplicate"]) == (1, 300)
    with pytest.raises(DataError, match=r"deduplicate\.against: has no use without deduplicate\.exact or"):
        prepare([texts], tmp_path / "c", tokenizer=tokenizer_file, against=[tmp_path / "a"])
    with pytest.raises(DataError, match=r"new\.txt: is a file, not a corpus(.|\n)*b: is the corpus that is to be"):
        prepare([texts], tmp_path / "b", against=[tmp_path / "new.txt", tmp_path / "b"], overwrite=True, **settings)
    with pytest.raises(DataError, match=r"none\.signatures\.json: no such file"):
        prepare([texts], tmp_path / "c", against=[tmp_path / "none"], **settings)
