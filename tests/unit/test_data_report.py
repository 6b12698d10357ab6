"""The report of a corpus: samples that tokens are estimated from, groups of inputs, counts, and the page."""

import json
import random
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from meshwright.data.clean.cleaner import Cleaning
from meshwright.data.clean.document import Decision
from meshwright.data.clean.mask import mask
from meshwright.data.clean.report import CleanCounts, Size
from meshwright.data.clean.sample import (
    EDITED_AWAY,
    PIECE_CHARACTERS,
    Estimate,
    Samples,
    edited_pieces,
    estimate_tokens,
)
from meshwright.data.deduplicate.report import DuplicateCounts
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.inputs.part import Source, Tally
from meshwright.data.preparation.input_groups import MOST_GROUPS, group_inputs
from meshwright.data.preparation.report import Prepared
from meshwright.data.record import CorpusRecord, SplitCounts
from meshwright.report.data_html import data_page
from meshwright.report.numbers import percent, short

HOSTILE = "</pre></script><script>alert('x')</script><img src=x onerror=\"alert(1)\"> & \x00\x1b \u202e"


def by_character(texts: list[str]) -> list[list[int]]:
    """One token for each letter a, two for each other character."""
    return [[0] * (2 * len(text) - text.count("a")) for text in texts]


def sampled(texts: list[str], shards: int) -> list[dict[str, Any]]:
    samples = [Samples(number, shards) for number in range(shards)]
    for number, text in enumerate(texts):
        samples[number * shards // len(texts)].drop("rule", text)
    return [json.loads(json.dumps(sample.as_json())) for sample in samples]


@pytest.mark.parametrize("shards", [1, 7, 3000])
def test_tokens_are_estimated_within_three_percent_whatever_the_lengths(shards: int) -> None:
    rng = random.Random(5)
    texts = [rng.choice("ab") * int(10 ** rng.uniform(1, 4.5)) for _ in range(3000)]
    exact = sum(map(len, by_character(texts)))
    found = sampled(texts, shards)
    assert found == sampled(texts, shards)
    estimate = estimate_tokens(found, by_character)["rule"]
    assert estimate.characters == sum(map(len, texts))
    assert max(sum(map(len, sample["rule"]["pieces"])) for sample in found) <= 1024 * PIECE_CHARACTERS // shards + 1024
    assert estimate.tokens == pytest.approx(exact, rel=0.03)


def test_a_few_texts_are_counted_exactly() -> None:
    assert estimate_tokens(sampled(["aaa", "b", "ab" * 100], 1), by_character)["rule"] == Estimate(305, 204, 204)


def test_short_pieces_count_no_more_than_their_length_where_each_shard_has_one() -> None:
    texts = ["a" * PIECE_CHARACTERS + "b"] * 1500
    assert estimate_tokens(sampled(texts, 1500), by_character)["rule"].tokens == pytest.approx(1500 * 1026, rel=0.01)


@pytest.mark.parametrize("shards", [1, 300])
def test_tokens_of_edits_are_estimated_where_most_pieces_are_left_as_they_were(shards: int) -> None:
    line = "b" * PIECE_CHARACTERS + "\n"
    samples = [Samples(number, shards) for number in range(shards)]
    for sample in samples:
        for number in range(10):
            sample.edit(line * number + "aaaa\n" + line * (40 - number), line * 40)
    estimate = estimate_tokens([json.loads(json.dumps(sample.as_json())) for sample in samples], by_character)
    assert estimate[EDITED_AWAY] == Estimate(60 * shards, 50 * shards, {1: 50, 300: 15 * 300}[shards])


@pytest.mark.parametrize("text", ["  one\n\ttwo\r\nmail anna@herons.org\nthree", "\u2028 one\x0c\n anna@herons.org\n"])
def test_lines_that_no_edit_touched_are_left_with_their_white_space(text: str) -> None:
    (touched,) = [line for line in text.splitlines(keepends=True) if "@" in line]
    assert list(edited_pieces(text, mask(text)[0])) == [(text, text.replace(touched, ""))]


def test_tokens_of_edits_are_those_of_the_text_before_less_those_after() -> None:
    before = "Menu\n   A good line.[1] \n\nb\n"
    assert list(edited_pieces(before, "A good line.\nb")) == [(before, "A good line.\nb")]
    samples = Samples(0, 1)
    for number in range(800):
        samples.edit(f"  {number}\n" * 300 + "aa\n" * 200 + "aa", "aa\n" * 200 + "aa")
    estimate = estimate_tokens([json.loads(json.dumps(samples.as_json()))], by_character)[EDITED_AWAY]
    assert estimate.characters == sum(300 * len(f"  {number}\n") for number in range(800))
    assert estimate.tokens == pytest.approx(2 * estimate.characters, rel=0.03)
    assert estimate.sampled < estimate.characters


def test_inputs_are_grouped_by_what_lies_under_their_common_folder(tmp_path: Path) -> None:
    files = [Path("in/web/en/a.txt"), Path("in/web/b.txt"), Path("in/books.jsonl")]
    groups = group_inputs(files)
    assert [groups.name(path) for path in files] == ["in/web", "in/web", "in/books.jsonl"]
    assert group_inputs(files[2:]).name(files[2]) == "in/books.jsonl"
    assert group_inputs([Path("a.txt")]).name(Path("a.txt")) == "a.txt"
    assert group_inputs([tmp_path / "a", Path("b")]).name(tmp_path / "a").startswith("/")
    many = [tmp_path / f"{number}.txt" for number in range(MOST_GROUPS + 1)]
    assert {group_inputs(many).name(path) for path in many} == {str(tmp_path)}


def counted(rows: list[tuple[str, Decision]], examples: int = 2) -> CleanCounts:
    counts = CleanCounts(tally=Tally(empty=1, pieces=Counter({"x": 2})))
    for number, (text, decision) in enumerate(rows):
        counts.add(
            Source(text, Path(f"<{number}>.txt"), 9, "byte", repaired=text == ROWS[0][0]),
            decision,
            group=text[:1],
            examples=examples,
        )
    return counts


ROWS = [
    ("a" * 10, Decision("a" * 8, edits={"mask_pii.email": 3, "c4.policy": 1}, language="en")),
    ("b" * 200, Decision(None, "gopher.too_few_words")),
    (HOSTILE, Decision(None, "language.de", language="de")),
    ("b" * 100, Decision(None, "gopher.too_few_words")),
    ("a" * 70, Decision("a" * 70, language="en")),
    ("c" * 30, Decision(None, "gopher.too_few_words")),
]


def test_counts_of_shards_add_up_to_those_of_the_whole() -> None:
    total = CleanCounts()
    for part in (ROWS[:2], ROWS[2:5], ROWS[5:]):
        total.merge(CleanCounts.from_json(json.loads(json.dumps(counted(part).as_json()))), 2)
    whole = counted(ROWS)
    whole.tally = Tally(empty=3, pieces=Counter({"x": 6}))
    for number, example in enumerate(total.dropped["gopher.too_few_words"].examples):
        example["file"] = f"<{(1, 3)[number]}>.txt"
    total.dropped["language.de"].examples[0]["file"] = "<2>.txt"
    assert total == whole
    content = total.as_json()
    assert list(content["dropped"]) == ["gopher.too_few_words", "language.de"]
    assert content["edits"] == {
        "mask_pii.email": {"documents": 1, "times": 3},
        "c4.policy": {"documents": 1, "times": 1},
    }
    assert content["lengths_read"] == {8: 1, 16: 1, 64: 3, 128: 1}
    assert content["lengths_kept"] == {8: 1, 64: 1}
    assert content["groups"]["a"] == {
        "read": {"documents": 2, "characters": 80},
        "kept": {"documents": 2, "characters": 78},
    }
    assert content["languages_found"]["en"] == {"documents": 2, "characters": 80}


def prepared(**changes: Any) -> Prepared:
    """A corpus of ``ROWS``; its tokens: 2 per character of what is dropped, 1 of what is edited away."""
    record = CorpusRecord(
        vocab_size=300,
        dtype="uint16",
        eos_id=0,
        eos_token="<eos>",
        tokenizer_sha256="",
        eval_fraction=0.5,
        train=SplitCounts(documents=1, tokens=40, utf8_bytes=8),
        eval=SplitCounts(documents=1, tokens=40, utf8_bytes=70),
        files=1,
        dropped={},
        invalid_utf8=1,
        inputs=(HOSTILE,),
    )
    rules = {"gopher.too_few_words": 330, "language.de": len(HOSTILE)}
    estimates = {rule: Estimate(2.0 * size, size, size // 2) for rule, size in rules.items()}
    settings: dict[str, Any] = {
        "record": record,
        "tally": Tally(empty=1),
        "cleaning": Cleaning(rule_sets=("gopher",), languages=("en",), thresholds={"gopher.min_words": 20}),
        "cleaned": counted(ROWS),
        "estimates": {**estimates, EDITED_AWAY: Estimate(4.0, 4, 4)},
    }
    return Prepared(**{**settings, **changes})


def test_flow_adds_up() -> None:
    flow = prepared().as_json()["flow"]
    dropped = {"documents": 4, "characters": 330 + len(HOSTILE), "tokens": 660 + 2 * len(HOSTILE) + 4}
    assert flow["cleaning"] == {**dropped, "estimated": True}
    assert flow["editing"] == {"documents": 0, "characters": 2, "tokens": 2, "estimated": True}
    assert flow["kept"] == {"documents": 2, "characters": 78, "tokens": 80, "estimated": False}
    for name in ("documents", "characters", "tokens"):
        assert flow["read"][name] == sum(flow[step][name] for step in ("cleaning", "editing", "kept"))
    assert flow["empty"]["documents"] == 1


def test_edits_that_no_sample_shows_have_the_rate_of_what_is_kept() -> None:
    long = "a" * 5000
    samples = Samples(0, 1)
    samples.edit(f"one\n{long}\n", f"one\n{long[1:]}\n")
    estimates = estimate_tokens([samples.as_json()], by_character)
    assert estimates == {EDITED_AWAY: Estimate(0, 0, 0)}
    flow = prepared(estimates=prepared().estimates | estimates, cleaned=counted(ROWS)).as_json()["flow"]
    # 78 tokens of text in the 78 characters kept.
    assert flow["editing"] == {"documents": 0, "characters": 2, "tokens": 2, "estimated": True}


def test_flow_with_duplicates_and_without_cleaning() -> None:
    found = DuplicateCounts(read=Size(7, 200), exact=Size(2, 40), near=Size(3, 60), clusters=2)
    both = {"deduplication": Deduplication(exact=True, near=True), "duplicates": found, "cleaned": None}
    flow = prepared(**both).as_json()["flow"]
    # 78 tokens of text in the 100 characters kept, and an end of text for each document.
    assert flow["exact_duplicates"] == {"documents": 2, "characters": 40, "tokens": 33, "estimated": True}
    assert flow["read"] == {"documents": 7, "characters": 200, "tokens": 163, "estimated": True}
    plain = prepared(cleaned=None).as_json()["flow"]
    assert plain["read"] == plain["kept"] == {"documents": 2, "characters": None, "tokens": 80, "estimated": False}
    assert "2 of 7 documents kept" in data_page(prepared(**both).as_json())
    assert "2 of 2 documents kept" in data_page(prepared(cleaned=None).as_json())


class Tags(HTMLParser):
    """Checks that every element is closed in its turn, and collects tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_shows_hostile_documents_as_they_are() -> None:
    example = {
        "kind": "near",
        "file": HOSTILE,
        "row": 3,
        "text": f"one two {HOSTILE}",
        "repeats": {"file": "x\udcff", "byte": 0, "text": f"one three {HOSTILE}"},
    }
    against = {"kind": "exact", "file": "a", "byte": 1, "text": HOSTILE, "repeats": {"corpus": HOSTILE, "document": 4}}
    found = DuplicateCounts(read=Size(2, 78), near=Size(0, 0), examples=[example, against])
    page = data_page(prepared(deduplication=Deduplication(near=True), duplicates=found).as_json())
    page.encode("utf-8")
    parsed = Tags(page)
    assert not parsed.tags & {"script", "img", "link", "iframe"}
    assert not any(name.startswith("on") or name == "src" for name in parsed.attributes)
    assert not re.search(r"https?:|@import|url\(|\x00|\x1b", page)
    for said in ("gopher.min_words\xa0=\xa020", "2 of 6 documents kept", "<mark>three</mark>", "&lt;2&gt;.txt, byte 9"):
        assert said in page
    assert "e-mail addresses replaced" in page
    assert '<td class="left">clean.thresholds: gopher.min_words</td><td class="left">20; published: 50</td>' in page


def test_numbers_are_short() -> None:
    assert [short(n) for n in (0, 9999, 12345, 999_600, 1.5e6, 2.345e12, None)] == [
        "0",
        "9,999",
        "12.3 k",
        "1,000 k",
        "1.5 M",
        "2.35 T",
        "?",
    ]
    assert [percent(*pair) for pair in ((1, 3), (1, 10_000), (0, 5), (0, 0))] == ["33.3 %", "<0.1 %", "0.0 %", "0.0 %"]
