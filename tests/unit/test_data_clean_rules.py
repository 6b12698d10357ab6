"""Rule sets: thresholds on both sides, counting against the plain definition, decisions of the reference."""

import contextlib
import json
import random
import runpy
from pathlib import Path

import pytest

from meshwright.data.clean.c4 import C4
from meshwright.data.clean.catalogue import THRESHOLDS, listed_rules, parse_thresholds
from meshwright.data.clean.cleaner import RULE_SETS, Cleaning
from meshwright.data.clean.document import Decision, Document
from meshwright.data.clean.fineweb import FineWeb
from meshwright.data.clean.gopher import GopherQuality, GopherRepetition
from meshwright.data.clean.language import Language, keep_languages
from meshwright.data.clean.mask import mask
from meshwright.data.clean.ngrams import NGrams
from meshwright.data.clean.repair import unicode_repair
from meshwright.data.clean.words import LONGEST_MARKS, LONGEST_PIECE, WordSplitter
from meshwright.data.errors import DataError

ROOT = Path(__file__).parents[2]
SPLITTER = WordSplitter()
PROSE = "The people of this town have to walk with care. "


def said(rule_set, text: str) -> str | None:
    return rule_set(Document(text, SPLITTER)).rule


def prose(words: int) -> str:
    """Different words of 4 letters, with two stop words."""
    return " ".join(["the", "with", *(f"w{number:03}" for number in range(words - 2))])


def test_decisions_are_those_of_datatrove() -> None:
    """Names of the rules by which datatrove 0.10.1 dropped made-up pages (benchmarks/data/corpora.py)."""
    golden = json.loads((ROOT / "tests" / "data" / "clean" / "datatrove_0.10.1.json").read_text())
    pages = list(runpy.run_path(str(ROOT / "benchmarks" / "data" / "corpora.py"))["nasty"](golden["documents"]))
    rules = {"repetition": RULE_SETS["gopher"][0], "quality": RULE_SETS["gopher"][1]}
    rules |= {name: RULE_SETS[name][0] for name in ("c4", "c4-fineweb", "fineweb")}
    for name, expected in golden["dropped_by"].items():
        dropped_by = [said(rules[name], page) for page in pages]
        assert [golden["names"].get(rule) for rule in dropped_by] == expected


@pytest.mark.parametrize(
    ("rule_set", "kept", "dropped", "rule"),
    [
        (GopherQuality(), prose(50), prose(49), "gopher.too_few_words"),
        (GopherQuality(max_words=60), prose(60), prose(61), "gopher.too_many_words"),
        (GopherQuality(), prose(60) + " abc" * 60, prose(60) + " ab" * 600, "gopher.words_too_short"),
        (GopherQuality(), prose(60), prose(60) + (" " + "m" * 20) * 60, "gopher.words_too_long"),
        (GopherQuality(), prose(90) + " #" * 10, prose(89) + " #" * 11, "gopher.too_many_hashes"),
        (GopherQuality(), prose(90) + " ..." * 10, prose(89) + " \u2026" * 11, "gopher.too_many_ellipses"),
        (GopherQuality(), "- a b\n" * 9 + prose(60), "- a b\n" * 10 + prose(60), "gopher.too_many_bullet_lines"),
        (GopherQuality(), PROSE * 10 + "\n" * 7, PROSE * 30 + "a...\n" * 4, "gopher.too_many_ellipsis_lines"),
        (GopherQuality(), prose(80) + " 1234" * 20, prose(79) + " 1234" * 21, "gopher.too_few_alphabetic_words"),
        (GopherQuality(), prose(60), prose(60).replace("with", "wich"), "gopher.too_few_stop_words"),
        (GopherRepetition(), "a\nb\nc\nd\ne\nf\ng\na\na\na", "a\nb\nc\nd\ne\nf\na\na\na\na", "gopher.duplicate_lines"),
        (GopherRepetition(), "ab\n\ncd\n\nef", "ab\n\nab\n\ncd", "gopher.duplicate_paragraphs"),
        (FineWeb(), PROSE + "end.", PROSE + "end", "fineweb.too_few_terminal_lines"),
        (FineWeb(), PROSE * 2 + "\nShort.", PROSE + "\nShort.\nShorter.\nNo.", "fineweb.too_many_short_lines"),
        (FineWeb(), "Ab.\n" + PROSE + "cd.", "Ab.\n" + PROSE + "\nAb.", "fineweb.duplicate_characters"),
        (C4(), "One two three. " * 5, "One two three. " * 4, "c4.too_few_sentences"),
        (C4(), PROSE * 5 + "\n{ not a sentence", PROSE * 5 + "\nA { in a sentence.", "c4.curly_bracket"),
        (C4(), PROSE * 5 + "\nLorem ipsum", PROSE * 5 + "\nThis is lorem IPSUM.", "c4.lorem_ipsum"),
    ],
)
def test_thresholds(rule_set, kept: str, dropped: str, rule: str) -> None:
    assert said(rule_set, dropped) == rule
    assert said(rule_set, kept) != rule


def test_c4_keeps_the_lines_that_read_like_sentences() -> None:
    good = ["It rains in the north today.", 'She said: "come in now!"', "Is it so? We do not know. Nobody does."]
    bad = [
        "Home | About",
        "Too short.",
        "And so on and so on...",
        "Turn on JavaScript to read this.",
        "x" * 1001 + " a b.",
    ]
    bad += ["We use cookies on this site.", ""]
    mixed = [line for pair in zip(good + [""] * 4, bad, strict=True) for line in pair]
    decision = C4()(Document("\n".join(mixed), SPLITTER))
    assert decision.text == "\n".join(good)
    assert decision.edits == {
        "c4.no_terminal_punctuation": 2,
        "c4.short_line": 1,
        "c4.javascript": 1,
        "c4.long_word": 1,
        "c4.policy": 1,
    }
    decision = C4()(Document(f"{good[2]}[12][edit]\n{good[0]}\n{good[1]}", SPLITTER))
    assert decision == Decision("\n".join((good[2], good[0], good[1])), edits={"c4.citation": 2})
    assert "Home | About us" in str(
        C4(terminal_punctuation=False)(Document("Home | About us\n" + PROSE * 5, SPLITTER)).text
    )


def top(words: list[str], n: int) -> int:
    grams = [" ".join(words[at : at + n]) for at in range(len(words) - n + 1)]
    best = max(grams, key=grams.count, default="")
    return len(best) * grams.count(best)


def duplicates(words: list[str], n: int) -> int:
    seen, at, characters = set(), 0, 0
    while at + n <= len(words):
        gram = tuple(words[at : at + n])
        characters += len("".join(gram)) if gram in seen else 0
        at += n if gram in seen else 1
        seen.add(gram)
    return characters


@pytest.mark.parametrize("seed", range(40))
def test_ngrams_against_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    words = rng.choices(["a", "bc", "def", "g", "hi"], k=rng.randint(0, 80)) * rng.randint(1, 3)
    ngrams = NGrams(words)
    assert [ngrams.top_characters(n) for n in range(1, 6)] == [top(words, n) for n in range(1, 6)]
    assert [ngrams.duplicate_characters(n) for n in range(1, 11)] == [duplicates(words, n) for n in range(1, 11)]


def test_words_and_sentences() -> None:
    assert SPLITTER.words("Don't  stop,\n(e.g. now)!") == ["Do", "n't", "stop", ",", "(", "e.g.", "now", ")", "!"]
    assert SPLITTER.sentences('He left. "Why?" (Nobody knew.) The end') == 4
    assert SPLITTER.words("") == []
    rule, letters = "=" * (3 * LONGEST_MARKS), "a" * (LONGEST_PIECE + 5)
    assert "".join(SPLITTER.words(rule)) == rule
    assert SPLITTER.words(letters) == [letters[:LONGEST_PIECE], letters[LONGEST_PIECE:]]


def test_mask_replaces_addresses_of_people_and_nothing_else() -> None:
    text = "write jo.e+x@mail.example.co.uk, from 8.8.8.8:80 or 2001:4860:4860::8888 or <a@b.org>"
    masked, times = mask(text)
    assert masked == "write email@example.com, from 192.0.2.1:80 or 2001:db8::1 or <email@example.com>"
    assert times == {"mask_pii.email": 2, "mask_pii.ipv4": 1, "mask_pii.ipv6": 1}
    same = "10.0.0.1 127.0.0.1 1.2.3 1.2.3.4.5 v1.2.3.4a 999.1.1.1 std::set a::b 2023:10 @decorator a @ b 2001:db8::7"
    same += " 1.3.6.1.5.5.7.3.2 libtix8.1.8.3 ks_in@devanagari.utf8': "
    assert mask(same)[0] == same


def test_repair_undoes_wrong_decodings_only() -> None:
    repair = unicode_repair()
    assert repair("schÃ¶n, donâ€™t &amp; co\x00") == "schön, don\u2019t & co"
    same = "\u201ccurly\u201d \ufb01ne \uff21\uff22 e\u0301 \u4e2d\u6587\u3002\r\nx"
    assert repair(same) == same


def test_languages() -> None:
    english = PROSE * 3
    german = "Die Leute in dieser Stadt gehen mit Vorsicht und bleiben gern zu Hause. " * 3
    only_english = keep_languages(["en"])
    assert said(only_english, english) is None
    assert said(only_english, german) == "language.de"
    assert only_english(Document(german, SPLITTER)).language == "de"
    assert said(only_english, "0 1 2") == "language.unsure"
    assert said(Language(only_english.identifier, frozenset(["de", "en"])), german) is None
    with pytest.raises(DataError, match=r"language 'english' is not known; known are .*\ben\b"):
        keep_languages(["english"])


def test_steps_are_applied_in_order() -> None:
    clean = Cleaning(rule_sets=("c4", "gopher"), repair_unicode=True, mask_pii=True).cleaner()
    words = prose(60).capitalize()
    text = f"Menu\n{words}. Donâ€™t write to me@site.org today. Once more now. Then it rains. Then it ends."
    kept = f"{words}. Don\u2019t write to email@example.com today. Once more now. Then it rains. Then it ends."
    edits = {"repair_unicode": 1, "c4.no_terminal_punctuation": 1, "mask_pii.email": 1}
    assert clean(text) == Decision(kept, edits=edits)
    assert clean("{ a b } " * 9 + "c d.") == Decision(None, "c4.curly_bracket")
    assert clean("\x00\x01") == Decision(None, "nothing_left")
    with pytest.raises(DataError, match="rule set 'goofer' is not known; known are gopher, c4, c4-fineweb, fineweb"):
        Cleaning(rule_sets=("goofer",)).cleaner()


def test_every_rule_and_threshold_is_listed() -> None:
    rules = {rule.name: rule for rule in listed_rules()}
    golden = json.loads((ROOT / "tests" / "data" / "clean" / "datatrove_0.10.1.json").read_text())
    assert set(golden["names"]) < set(rules)
    assert {name for rule in rules.values() for name in rule.thresholds} == set(THRESHOLDS)
    assert (THRESHOLDS["gopher.max_top_2_gram"].default, THRESHOLDS["c4.min_sentences"].default) == (0.2, 5)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_least_and_the_most_that_is_legal_works(name: str) -> None:
    prefix, legal = name.partition(".")[0], THRESHOLDS[name].legal
    step = {"languages": ("en",)} if prefix == "language" else {"rule_sets": (prefix,)}
    for value in (0, legal.most):
        with contextlib.suppress(DataError):
            clean = Cleaning(thresholds={name: value}, **step).cleaner()
            assert all(isinstance(clean(text), Decision) for text in (PROSE * 9, "\u4e2d", "!", "a\na\na", "- \n..."))


@pytest.mark.parametrize(
    ("text", "dropped_by"),
    [
        ("\u6cb3\u6c34\u4f4e\uff0c\u9e6d\u6765\u4e86\u3002" * 60, {"gopher": "top_2_gram", "c4": "too_few_sentences"}),
        ("\u6cb3\u6c34\u4f4e\u9e6d\u6765\u4e86" * 60, {"gopher": "too_few_words", "fineweb": "too_few_terminal_lines"}),
        (
            " ".join(f"\u0e01\u0e34\u0e19\u0e02\u0e49\u0e32\u0e27{chr(0xE01 + n)}" * 3 for n in range(60)),
            {"gopher": "words_too_long"},
        ),
        (
            " ".join(f"\u0646\u0647\u0631{chr(0x627 + n % 30)}{chr(0x628 + n // 30)}" for n in range(90)) + ".",
            {"gopher": "too_few_stop_words"},
        ),
        (
            " ".join(f"\u0440\u0435\u043a\u0430{chr(0x430 + n % 30)}{chr(0x430 + n // 30)}" for n in range(90)) + ".",
            {"gopher": "too_few_stop_words", "fineweb": None},
        ),
    ],
    ids=["Chinese", "Chinese without marks", "Thai", "Arabic", "Russian"],
)
def test_other_scripts_are_judged_as_documented(text: str, dropped_by: dict[str, str | None]) -> None:
    for name, rule in dropped_by.items():
        assert Cleaning(rule_sets=(name,)).cleaner()(text).rule == (f"{name}.{rule}" if rule else None)


def test_thresholds_by_name_decide() -> None:
    settings = ["gopher.min_words=4", "gopher.min_stop_words = 0", *(f"gopher.max_top_{n}_gram=2" for n in (2, 3, 4))]
    thresholds = parse_thresholds(settings)
    clean = Cleaning(rule_sets=("gopher",), thresholds=thresholds).cleaner()
    assert clean("The tall tree fell.").text is not None
    assert clean("The tall tree.").rule == "gopher.too_few_words"
    assert Cleaning(rule_sets=("c4-fineweb",), thresholds={"c4.min_sentences": 1}).cleaner()("A b c.").text == "A b c."
    for text in ("Menu | About", "Menu.\n\n"):
        unlimited = Cleaning(rule_sets=("c4",), thresholds={"c4.min_sentences": 0}).cleaner()
        assert unlimited(text) == Decision(None, "nothing_left")
    assert (
        Cleaning(languages=("en",), thresholds={"language.min_probability": 1}).cleaner()(PROSE).rule
        == "language.unsure"
    )
    assert Cleaning(rule_sets=("c4",)).thresholds_in_use() == {
        "c4.min_sentences": 5,
        "c4.min_line_words": 3,
        "c4.max_word_length": 1000,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gopher.min_wrds=3"], r"gopher.min_wrds: is not known; did you mean gopher.min_words or .*known are gopher"),
        (["goffer.min_words=3"], r"did you mean gopher.min_words .*known are language.min_probability, gopher"),
        (["gopher.too_few_words=3"], "is a rule; its threshold is gopher.min_words"),
        (["gopher.min_words"], "'gopher.min_words': write NAME=VALUE"),
        (["gopher.min_words=3", "gopher.min_words=4"], "gopher.min_words is given twice: 3 and 4"),
        (["gopher.min_words=3.5"], "gopher.min_words: 3.5 is not legal; it takes a whole number from 0 to 1000000000"),
        (["gopher.min_stop_words=9"], "9 is not legal; it takes a whole number from 0 to 8"),
        (["gopher.max_bullet_lines=90"], "90 is not legal; it takes a number from 0 to 1"),
        (["gopher.max_line_ends=x"], "gopher.max_line_ends: is not known; did you mean"),
        (["gopher.max_symbol_ratio=nan"], "nan is not legal; it takes a number from 0 to 1000000000"),
        (["gopher.max_symbol_ratio=" + "9" * 400], "9 is not legal; it takes a number from 0 to 1000000000"),
        (["gopher.min_words=" + "9" * 400], "9 is not legal; it takes a whole number from 0 to 1000000000"),
        (["gopher.max_symbol_ratio=much"], "'much' is not legal"),
        (["c4.min_sentences=3"], "c4.min_sentences: has no use without c4 or c4-fineweb in --clean"),
        (["language.min_probability=0.5"], "has no use without --language"),
        (["gopher.min_wrds=3", "c4.min_sentences=3"], r"is not known(.|\n)*has no use"),
        (["gopher.min_words=9", "gopher.max_words=8"], r"gopher.min_words \(9\) is above gopher.max_words \(8\)"),
    ],
)
def test_wrong_thresholds_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Cleaning(rule_sets=("gopher",), thresholds=parse_thresholds(settings)).cleaner()


def test_words_of_letters_are_whole_as_with_all_rules() -> None:
    """Letters, with a mark or not, are not given to spaCy but where it knows them by heart: "cannot", "dont", "pm."."""
    from spacy.lang.en import English

    tokenizer = English().tokenizer
    rng = random.Random(0)
    letters = list(filter(str.isalpha, map(chr, range(0x3000))))
    scripts = ["abcdefghmstABCIKMSTX", *(letters[start : start + 50] for start in range(0, len(letters), 50))]
    pieces = ["".join(rng.choices(script, k=rng.randint(1, 9))) for script in scripts for _ in range(20)]
    pieces += [piece for piece in tokenizer.rules if piece.split() == [piece]]
    pieces += [f"{piece.strip('.')}{mark}" for piece in pieces for mark in ",.;:!?)"]
    assert [SPLITTER.words(piece) for piece in pieces] == [[token.text for token in tokenizer(one)] for one in pieces]
