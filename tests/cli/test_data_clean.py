"""Cleaning as a stage of ``data prepare``: its report, any number of workers, killed at any point and gone on."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.data.clean.cleaner import Cleaning
from meshwright.data.clean.shards import ShardCleaner
from meshwright.data.corpus import Part, Tally, read_parts
from meshwright.data.errors import DataError
from meshwright.data.indexed import IndexedDataset
from meshwright.data.preparation import shards
from meshwright.data.preparation.prepare import OUTPUTS, prepare
from meshwright.data.preparation.shards import Shard, plan_shards
from meshwright.data.preparation.workplace import workplace_path
from meshwright.data.vocabulary.tokenizer import load_tokenizer, train_tokenizer

GOOD = "Number {} of these letters is for the people that have to walk with care. It has a second line. "
CLEANING = Cleaning(rule_sets=("c4",))
# Kills itself before it names its NUMBER-th file.
KILLED = """
import os, signal, sys
from pathlib import Path
from meshwright.data.preparation import shards
from meshwright.data.clean.cleaner import Cleaning
from meshwright.data.preparation.prepare import prepare

def replace(source, target, left=[int(sys.argv[4])]):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

rename, os.replace, shards.SHARD_BYTES = os.replace, replace, 2000
prepare([sys.argv[1]], sys.argv[2], tokenizer=sys.argv[3], eval_fraction=0.2, cleaning=Cleaning(rule_sets=("c4",)))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents in two .jsonl files and two texts; those of even number are to be dropped."""
    root = tmp_path_factory.mktemp("source")
    rows = [GOOD.format(n) * 3 if n % 2 else f"{{ {n} }} is code. " * (1 + n % 7) for n in range(58)]
    (root / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows[:40]) + "\n")
    (root / "b.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in [*rows[40:], " "]))
    (root / "c.txt").write_text(GOOD.format("c") * 3 + "\nHome | About")
    (root / "d.txt").write_text("Only this.")
    return root


@pytest.fixture(scope="module")
def tokenizer(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(train_tokenizer([GOOD], 280).body)
    return path


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)


def clean(source: Path, output: Path, tokenizer: Path, **options) -> dict[str, bytes]:
    prepare([source], output, tokenizer=tokenizer, eval_fraction=0.2, cleaning=CLEANING, **options)
    assert not workplace_path(output).exists()
    return {suffix: path.read_bytes() for suffix in OUTPUTS if (path := Path(f"{output}{suffix}")).exists()}


def test_cut_files_give_each_line_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(source.iterdir())
    whole: list[tuple[Path, int]] = []
    for size in (1, 37, 200, 10**6):
        monkeypatch.setattr(shards, "SHARD_BYTES", size)
        parts = [part for shard in plan_shards(files) for part in shard.parts]
        texts = [(found.path, found.at) for found in read_parts(parts, text_key="text", tally=Tally())]
        whole = whole or texts
        assert texts == whole
    assert len(whole) == 60


def test_report_and_corpus_agree_whatever_the_number_of_workers(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    one = clean(source, tmp_path / "one", tokenizer, examples=2)
    assert one == clean(source, tmp_path / "two", tokenizer, workers=2, examples=2)
    whole, record = json.loads(one[".report.json"]), json.loads(one[".json"])
    report = whole["cleaning"]
    assert report["rule_sets"] == ["c4"]
    assert report["read"]["documents"] == 60
    assert {name: size["read"]["documents"] for name, size in report["groups"].items()} == {
        str(source / name): number for name, number in (("a.jsonl", 40), ("b.jsonl", 18), ("c.txt", 1), ("d.txt", 1))
    }
    assert {rule: dropped["documents"] for rule, dropped in report["dropped"].items()} == {
        "c4.curly_bracket": 29,
        "c4.too_few_sentences": 1,
    }
    assert record["dropped"] == {"empty": 1, "too_long": 0, "c4.curly_bracket": 29, "c4.too_few_sentences": 1}
    assert report["dropped"]["c4.too_few_sentences"]["characters"] == len("Only this.")
    assert [example["text"][:8] for example in report["dropped"]["c4.curly_bracket"]["examples"]] == [
        "{ 0 } is",
        "{ 2 } is",
    ]
    assert (report["kept"]["documents"], report["edited"]) == (30, 30)
    splits = [IndexedDataset(tmp_path / name) for name in ("one", "one.eval")]
    assert sum(split.documents for split in splits) == 30
    assert sum(len(split.tokens) for split in splits) == whole["flow"]["kept"]["tokens"]
    # Each document ends with one more token; cut where a line was dropped, text has a token or so more.
    encode = load_tokenizer(tokenizer).encode
    read = [
        found.text
        for found in read_parts([Part(path) for path in sorted(source.iterdir())], text_key="text", tally=Tally())
    ]
    tokens = sum(map(len, encode(read))) + len(read)
    assert whole["flow"]["read"]["tokens"] == pytest.approx(tokens, rel=0.01)
    assert report["kept"]["characters"] == record["train"]["utf8_bytes"] + record["eval"]["utf8_bytes"]


# Files of a shard get their names in this order: text, sample, counts.
@pytest.mark.parametrize("number", [2, 3, 9, 0], ids=["after the text", "before the counts", "later", "after cleaning"])
def test_killed_and_gone_on_gives_the_same_bytes(
    source: Path, tokenizer: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = len(plan_shards(sorted(source.iterdir())))
    expected = clean(source, tmp_path / "whole", tokenizer)
    number = number or 3 * planned + 1
    output = tmp_path / "killed"
    arguments = [str(source), str(output), str(tokenizer), str(number)]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=60, check=False)
    assert done.returncode == -9
    redone: list[int] = []

    def note(self: ShardCleaner, shard: Shard) -> None:
        redone.append(shard.number)
        call(self, shard)

    call = ShardCleaner.__call__
    monkeypatch.setattr(ShardCleaner, "__call__", note)
    assert clean(source, output, tokenizer) == expected
    assert redone == list(range((number - 1) // 3, planned))


def test_other_settings_do_not_go_on_from_old_shards(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    output = tmp_path / "c"
    with pytest.raises(DataError, match=r"no document is left for training: 1 empty, 29 c4\.curly_bracket, .* 30 held"):
        prepare([source], output, tokenizer=tokenizer, eval_fraction=1 - 1e-9, cleaning=CLEANING)
    assert len(list(workplace_path(output).glob("clean-*"))) == 1
    assert list(workplace_path(output).glob("corpus-*")) == [], "told before anything is written"
    lenient = replace(CLEANING, thresholds={"c4.min_sentences": 1, "c4.min_line_words": 1})
    with pytest.raises(DataError, match=r"no document is left for training: 1 empty, 29 c4\.curly_bracket, 31 held"):
        prepare([source], output, tokenizer=tokenizer, eval_fraction=1 - 1e-9, cleaning=lenient)
    record = prepare([source], output, tokenizer=tokenizer, cleaning=Cleaning(mask_pii=True))
    assert record.dropped == {"empty": 1, "too_long": 0}
    assert not workplace_path(output).exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_line_is_named(source: Path, tokenizer: Path, tmp_path: Path, workers: int) -> None:
    rows = ['{"text": "fine"}'] * 200
    (tmp_path / "bad.jsonl").write_text("\n".join([*rows, '{"text": 1}']))
    with pytest.raises(DataError, match=r"bad\.jsonl:201: 'text' is int, not text"):
        prepare([tmp_path / "bad.jsonl"], tmp_path / "c", tokenizer=tokenizer, cleaning=CLEANING, workers=workers)


def test_the_command_shows_what_was_dropped(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "meshwright", "data", "prepare", source, "--output", tmp_path / "c"]
    command += ["--tokenizer", tokenizer, "--workers", 1]
    done = subprocess.run(
        [*map(str, command), "--clean", "c4", "--html", tmp_path / "page.html"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.search(r"^read +60 +\d+ +~\d+$", done.stdout, re.MULTILINE)
    assert re.search(r"^c4\.curly_bracket +29 +\d+ +~\d+  '\{ 0 \} is code\. '$", done.stdout, re.MULTILINE)
    assert re.search(r"^kept +30 +\d+ +\d+$", done.stdout, re.MULTILINE)
    assert ".report.json\n" in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert "30 of 60 documents kept" in page
    assert re.search(r"cleaning</td>.*?<td>[\d.]+</td>", page)
    done = subprocess.run(
        [*map(str, command), "--overwrite", "--clean", "c5"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == (
        "meshwright data prepare: --clean: rule set 'c5' is not known; known are gopher, c4, c4-fineweb, fineweb\n"
    )
