"""Duplicates: the chance to find them, what stays of them, against earlier corpora, the decisions of the reference."""

import json
import random
import runpy
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from meshwright.data.clean.cleaner import Cleaning
from meshwright.data.clean.shards import ShardCleaner, text_path
from meshwright.data.corpus import Part
from meshwright.data.deduplicate.clusters import Clusters
from meshwright.data.deduplicate.compare import Comparer, equal_keys, pairs_path
from meshwright.data.deduplicate.find import Finder, dropped
from meshwright.data.deduplicate.kept import kept_keys
from meshwright.data.deduplicate.minhash import MinHasher
from meshwright.data.deduplicate.near import NearKeys
from meshwright.data.deduplicate.report import DuplicateCounts
from meshwright.data.deduplicate.rows import row_count
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.deduplicate.shingles import Shingler
from meshwright.data.deduplicate.sign import Signer, keys_path
from meshwright.data.errors import DataError
from meshwright.data.preparation.documents import Reader, rewritten
from meshwright.data.preparation.input_groups import group_inputs
from meshwright.data.preparation.shards import Shard

ROOT = Path(__file__).parents[2]
NEAR = Deduplication(near=True)
BOTH = Deduplication(exact=True, near=True)
READER = Reader("text")
NGRAMS = 100
CORPORA = runpy.run_path(str(ROOT / "benchmarks" / "data" / "corpora.py"))
VOCABULARY = [first + second + third for first in "bcdfghlmnprstvz" for second in "aeiou" for third in "bcdfghlmnprst"]


def prose(seed: int, words: int = 60) -> str:
    """Words in an order of its own for each seed."""
    return " ".join(random.Random(seed).sample(VOCABULARY, words))


def write(folder: Path, texts: Sequence[str], shards: int = 1) -> list[Shard]:
    """A .jsonl file per shard, with about as many documents each."""
    folder.mkdir()
    made = []
    for number in range(shards):
        path = folder / f"{number}.jsonl"
        mine = texts[number * len(texts) // shards : (number + 1) * len(texts) // shards]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in mine))
        made.append(Shard(number, (Part(path),), path.stat().st_size))
    return made


def deduplicate(
    folder: Path, settings: Deduplication, texts: Sequence[str], *, shards: int = 1, against: Sequence[Path] = ()
) -> tuple[list[int], DuplicateCounts]:
    """Numbers of the documents dropped, and the counts; keys of the others are kept as folder/corpus."""
    made = write(folder, texts, shards)
    sign = Signer(settings, READER, folder)
    for shard in made:
        sign(shard)
    finder = Finder(settings, made, folder, folder, {prefix: kept_keys(prefix, settings) for prefix in against})
    for comparison in finder.comparisons:
        finder.comparer(comparison)
    finder.drop(READER, examples=2)
    finder.save_keys(folder / "corpus")
    drop = np.concatenate([dropped(folder, shard) for shard in made])
    return np.flatnonzero(drop).tolist(), DuplicateCounts.load(folder)


@pytest.mark.parametrize("settings", [NEAR, Deduplication(near=True, bands=5, rows=4)])
def test_chance_to_find_near_duplicates_is_that_of_the_theory(settings: Deduplication) -> None:
    """Planted pairs found, at each similarity, within 4 standard deviations of 1 - (1 - s^rows)^bands."""
    rng, count, keys = random.Random(1), 400, NearKeys(settings)
    chi_squared = 0.0
    for wanted in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95):
        common = round(NGRAMS * 2 * wanted / (1 + wanted))
        similarity = common / (2 * NGRAMS - common)
        for text in CORPORA["pairs"](rng, count, ngrams=NGRAMS, common=common):
            keys.add(text)
        bands = keys.take()
        found = int((bands[:, ::2] == bands[:, 1::2]).any(axis=0).sum())
        chance = 1 - (1 - similarity**settings.rows) ** settings.bands
        assert chance == pytest.approx(settings.detection(similarity))
        variance = count * chance * (1 - chance)
        assert abs(found - count * chance) <= 4 * variance**0.5 + 0.5
        chi_squared += (found - count * chance) ** 2 / max(variance, 1)
    assert chi_squared < 22, "0.5 % of the time for 8 degrees of freedom"
    assert len(bands) == settings.bands


def test_words_and_decisions_are_those_of_datatrove() -> None:
    """Words of odd texts, and the documents that datatrove 0.10.1 dropped (benchmarks/data/deduplicate_golden.py).

    It keeps any one of a cluster, here the first one stays: of each cluster all but one must be dropped by both.
    """
    golden = json.loads((ROOT / "tests" / "data" / "deduplicate" / "datatrove_0.10.1.json").read_text())
    split = Shingler(NEAR.ngram).words
    for text, words in golden["words"]:
        assert [word.decode() for word in split(text)] == words
    keys = NearKeys(NEAR)
    for text in CORPORA["retold"](golden["documents"]):
        keys.add(text)
    clusters, numbers = Clusters(golden["documents"]), np.arange(golden["documents"])
    for band in keys.take():
        clusters.join(equal_keys(band[None, band != 0], numbers[band != 0]))
    first = clusters.first(numbers)
    assert sum(first != numbers) == len(golden["dropped"])
    assert sorted(np.delete(first, golden["dropped"])) == sorted(set(first.tolist()))
    assert len(set(numbers[first != numbers].tolist()) ^ set(golden["dropped"])) <= 2


def test_keys_are_equal_where_least_values_of_the_family_are() -> None:
    """Against h(x) = (a x + b mod 2^64) mod (2^61 - 1), as the reference has it, in whole numbers."""
    settings = Deduplication(near=True, bands=6, rows=2)
    rng = random.Random(3)
    shingles = [rng.getrandbits(64) for _ in range(40)]
    documents = [rng.sample(shingles, 20) for _ in range(30)] + [[]]
    generator = np.random.RandomState(1)
    a, b = (generator.randint(low, 2**61 - 1, dtype=np.uint64, size=12).tolist() for low in (1, 0))
    least = [
        [min((x * m + c) % 2**64 % (2**61 - 1) for x in document) for m, c in zip(a, b, strict=True)]
        for document in documents[:-1]
    ]
    keys = MinHasher(settings)([np.array(document, np.uint64) for document in documents])
    assert (keys[:, -1] == 0).all()
    for band in range(settings.bands):
        expected = [tuple(values[2 * band : 2 * band + 2]) for values in least]
        assert len(set(keys[band, :-1].tolist())) == len(set(expected))
        assert len(set(zip(keys[band].tolist(), expected, strict=False))) == len(set(expected))


@pytest.mark.parametrize("shards", [1, 3])
def test_the_first_of_each_cluster_stays(tmp_path: Path, shards: int) -> None:
    texts = [prose(0), prose(1), "", prose(0), prose(1) + " and", prose(2), prose(1).upper(), prose(0) + "!", prose(0)]
    drop, counts = deduplicate(tmp_path / "a", BOTH, texts, shards=shards)
    assert drop == [2, 3, 5, 6, 7], "in the order of documents read, without the empty one"
    assert (counts.read.documents, counts.exact.documents, counts.near.documents) == (8, 2, 3)
    assert (counts.clusters, counts.against) == (2, 0)
    assert counts.exact.characters == 2 * len(prose(0))
    assert [example["kind"] for example in counts.examples] == ["exact", "exact", "near", "near"]
    near = counts.examples[2]
    assert near["text"] == (prose(1) + " and")[:300]
    assert near["repeats"] == {
        "file": str(tmp_path / "a" / "0.jsonl"),
        "byte": len(prose(0)) + 13,
        "text": prose(1)[:300],
    }


def test_short_documents_are_exact_duplicates_only(tmp_path: Path) -> None:
    texts = ["one two three four", "one two three four", "one two three four five", "One two three four five."]
    assert deduplicate(tmp_path / "near", NEAR, texts)[0] == [3]
    assert deduplicate(tmp_path / "exact", Deduplication(exact=True), texts)[0] == [1]
    assert deduplicate(tmp_path / "both", BOTH, texts)[0] == [1, 3]


def test_nothing_to_compare(tmp_path: Path) -> None:
    drop, counts = deduplicate(tmp_path / "none", BOTH, ["", " "])
    assert (drop, counts.read.documents, counts.examples) == ([], 0, [])


def test_against_earlier_corpora(tmp_path: Path) -> None:
    """Their documents come first and stay; what an earlier corpus had dropped is not held against a later one."""
    deduplicate(tmp_path / "one", BOTH, [prose(0), prose(0), prose(1)])
    deduplicate(tmp_path / "two", BOTH, [prose(1), prose(2)])
    against = [tmp_path / "one" / "corpus", tmp_path / "two" / "corpus"]
    drop, counts = deduplicate(tmp_path / "new", BOTH, [prose(3), prose(2) + " x", prose(0), prose(3)], against=against)
    assert drop == [1, 2, 3]
    assert (counts.read.documents, counts.exact.documents, counts.against, counts.clusters) == (4, 2, 2, 3)
    repeats = [example["repeats"] for example in counts.examples]
    assert repeats[0] == {"corpus": str(against[0]), "document": 0}
    assert repeats[2] == {"corpus": str(against[1]), "document": 1}


def test_against_refuses_what_does_not_fit(tmp_path: Path) -> None:
    deduplicate(tmp_path / "one", NEAR, [prose(0)])
    with pytest.raises(DataError, match=r"corpus\.signatures\.json: made with other settings: exact False, not True"):
        deduplicate(tmp_path / "two", BOTH, [prose(0)], against=[tmp_path / "one" / "corpus"])
    with pytest.raises(DataError, match=r"none\.signatures\.json: no such file"):
        deduplicate(tmp_path / "three", NEAR, [prose(0)], against=[tmp_path / "none"])
    (tmp_path / "one" / "corpus.signatures.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"corpus\.signatures\.npy: cannot be read as signatures"):
        deduplicate(tmp_path / "four", NEAR, [prose(0)], against=[tmp_path / "one" / "corpus"])


def test_exact_comparing_needs_no_other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert deduplicate(tmp_path / "exact", Deduplication(exact=True), [prose(0), prose(0)])[0] == [1]
    with pytest.raises(DataError, match="the package `xxhash` is not installed"):
        deduplicate(tmp_path / "near", NEAR, [prose(0)])


def test_settings_out_of_range() -> None:
    wrong = dict(Deduplication(near=True, ngram=0, bands=5000, rows=-1).mistakes())
    assert wrong == {
        "ngram": "0 must be from 1 to 1000",
        "bands": "5000 must be from 1 to 1024",
        "rows": "-1 must be from 1 to 1024",
    }
    product = dict(Deduplication(near=True, bands=100, rows=20).mistakes())
    assert product == {"bands": "100 of 20 rows each must be at most 1024 hash values"}
    assert not list(Deduplication(near=True, ngram=1000, bands=1, rows=1024).mistakes())
    assert NEAR.threshold == pytest.approx((1 / 14) ** (1 / 8))


def test_ranges_of_keys_find_the_same_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.data.deduplicate.compare.READ_DOCUMENTS", 7)
    shards = write(tmp_path / "in", [prose(number % 20) for number in range(60)], shards=2)
    sign = Signer(BOTH, READER, tmp_path)
    for shard in shards:
        sign(shard)
    found = []
    for ranges in (1, 4):
        directory = tmp_path / str(ranges)
        directory.mkdir()
        comparer = Comparer(BOTH, ranges, directory)
        comparisons = comparer.comparisons([keys_path(tmp_path, shard) for shard in shards], 60)
        assert len(comparisons) == 15 * ranges
        pairs: list[set[tuple[int, int]]] = [set() for _ in range(15)]
        for comparison in comparisons:
            comparer(comparison)
            pairs[comparison.number // ranges] |= set(zip(*np.load(pairs_path(directory, comparison)), strict=True))
        found.append(pairs)
    assert found[0] == found[1]
    assert found[0] == [{(number % 20, number) for number in range(20, 60)}] * 15
    assert Comparer.of(BOTH, 1 << 26, tmp_path).ranges == 1
    assert Comparer.of(BOTH, (1 << 26) + 1, tmp_path).ranges == 2


def test_equal_keys_are_equal_in_all_rows() -> None:
    keys = np.array([[7, 7, 3, 7, 3, 9], [1, 2, 5, 1, 5, 5]], np.uint64)
    assert equal_keys(keys, np.array([10, 11, 12, 3, 14, 15])).T.tolist() == [[12, 14], [3, 10]]
    assert row_count(BOTH) == 17


def test_clusters_do_not_depend_on_the_order_of_pairs() -> None:
    """A chain in any order is one cluster, named by its first."""
    rng = np.random.default_rng(0)
    names = rng.permutation(3000)
    chains = [names[start : start + 300] for start in range(0, 3000, 300)]
    pairs = np.concatenate([np.stack([chain[:-1], chain[1:]]) for chain in chains], axis=1)
    expected = np.empty(3000, np.int64)
    for chain in chains:
        expected[chain] = chain.min()
    for _ in range(2):
        pairs = pairs[:, rng.permutation(pairs.shape[1])]
        clusters = Clusters(3000)
        for part in np.array_split(pairs, 7, axis=1):
            clusters.join(part)
        np.testing.assert_array_equal(clusters.first(np.arange(3000)), expected)


def test_examples_of_documents_are_read_as_documents_are(tmp_path: Path) -> None:
    """A mark in the middle, numbers that Python refuses, and a key of the input that is that of cleaned documents."""
    odd = [b"\xef\xbb\xbf{%s}", b'{"n": ' + b"9" * 5000 + b", %s}", b'{"meshwright:place": "no", %s}']
    lines = [line % b'"text": "the same"' for line in odd]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(lines))
    shard = Shard(0, (Part(path),), path.stat().st_size)
    settings = Deduplication(exact=True)
    Signer(settings, READER, tmp_path)(shard)
    finder = Finder(settings, [shard], tmp_path, tmp_path)
    for comparison in finder.comparisons:
        finder.comparer(comparison)
    finder.drop(READER, examples=2)
    examples = DuplicateCounts.load(tmp_path).examples
    starts = [0, len(lines[0]) + 1, len(lines[0]) + len(lines[1]) + 2]
    assert [example["byte"] for example in examples] == starts[1:]
    assert [example["repeats"]["byte"] for example in examples] == [0, 0]
    path.write_bytes(lines[0])
    with pytest.raises(DataError, match=r"in\.jsonl: has fewer documents than when it was signed"):
        finder.drop(READER, examples=2)


def test_signing_takes_no_more_memory_than_its_rows(tmp_path: Path) -> None:
    signer, count = Signer(Deduplication(exact=True), READER, tmp_path), 20_000
    tracemalloc.start()
    rows = signer.rows(f"document {number}" for number in range(count))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.nbytes == 24 * count
    assert peak < 2.5 * rows.nbytes


def test_documents_without_ngrams_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.data.deduplicate.near.BATCH_DOCUMENTS", 50)
    keys = NearKeys(NEAR)
    for text in ("too short", prose(0)):
        for _ in range(199):
            keys.add(text)
            assert len(keys._waiting) < 50
    found = keys.take()
    assert found.shape == (NEAR.bands, 398)
    assert (found[:, :199] == 0).all()
    assert (found[:, 199:] == found[:, -1:]).all()
    assert found.all(axis=0).sum() == 199


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": None}, "it has no 'settings'"),
        ({"documents": None}, "it has no 'documents'"),
        ({"settings": "exact"}, "cannot be read as signatures"),
        ({"documents": []}, "cannot be read as signatures"),
        ({"settings": {}}, "made with other settings: exact None, not True"),
    ],
)
def test_signatures_that_say_too_little_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    settings = Deduplication(exact=True)
    deduplicate(tmp_path / "a", settings, ["one", "two"])
    about = tmp_path / "a" / "corpus.signatures.json"
    content = {**json.loads(about.read_text()), **change}
    about.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    with pytest.raises(DataError, match=message):
        kept_keys(tmp_path / "a" / "corpus", settings)


def test_examples_of_cleaned_documents_are_where_they_were_before(tmp_path: Path) -> None:
    """Lines that were dropped or edited by cleaning move the bytes of those after them."""
    one, other = (f"That the {prose(seed).replace(' ', 'en ')} is of use." for seed in (0, 1))
    texts = ["...", f"{one} Write to a@example.net.", other, one, other]
    (shard,) = write(tmp_path / "in", texts)
    cleaning = Cleaning(rule_sets=("gopher",), mask_pii=True)
    ShardCleaner(cleaning, "text", tmp_path, 0, group_inputs([shard.parts[0].path]), 1)(shard)
    cleaned = rewritten([shard], [text_path(tmp_path, shard)])
    Signer(BOTH, cleaned.reader, tmp_path)(cleaned.shards[0])
    finder = Finder(BOTH, cleaned.shards, tmp_path, tmp_path)
    for comparison in finder.comparisons:
        finder.comparer(comparison)
    finder.drop(cleaned.reader, examples=1)
    lines = (tmp_path / "in" / "0.jsonl").read_bytes().splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)]).tolist()
    exact, near = DuplicateCounts.load(tmp_path).examples
    assert [exact["byte"], exact["repeats"]["byte"]] == [starts[4], starts[2]]
    assert [near["byte"], near["repeats"]["byte"]] == [starts[3], starts[1]]
    assert near["repeats"]["file"] == str(tmp_path / "in" / "0.jsonl")
