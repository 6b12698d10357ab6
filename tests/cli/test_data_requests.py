"""Wrong requests of ``meshwright data prepare``: what is said, by the names that people gave, and what stays whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in, with one input."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "one fox"}\n{"text": "two foxes"}\n')
    return path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The lines of a command that must end with code 2."""
    assert main(["data", "prepare", *words]) == 2
    return capsys.readouterr().err.removeprefix("meshwright data prepare: ").splitlines()


GOOD = ("rows.jsonl", "--output", "c", "--train-tokenizer", "280", "--eval-fraction", "0", "--workers", "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--outptu", "c"], "unknown option --outptu, did you mean --output?"),
        (["--out", "c"], "unknown option --out, did you mean --output?"),
        (["--clean", ","], "argument --clean: it names nothing"),
        (["--deduplicate", ""], "argument --deduplicate: it names nothing"),
        (["--clean", "gopher,gopher"], "--clean: rule set 'gopher' is named 2 times"),
        (["--eos-token", "x"], "--eos-token: has no use without --tokenizer FILE"),
        (["--examples", "7"], "--examples: has no use where nothing is cleaned or deduplicated"),
        (["--html", "new.html", "--task", ""], "--html shows a complete corpus"),
        (["--task", ""], "task '' must be K/N"),
        (["--bands", "14"], "--bands: has no use without --deduplicate near"),
        (["--ngram", "x"], '--ngram: must be a whole number >= 1, not "x"'),
        (["--deduplicate", "near", "--ngram", "5000000"], "--ngram: 5000000 must be from 1 to 1000"),
        (["--eval-fraction", "2"], "--eval-fraction: must be a number >= 0 and < 1, not 2"),
        (["--train-tokenizer", "99999999999"], "--train-tokenizer: vocabulary of 99999999999 is too large"),
        (["--deduplicate", "exact", "--against", "c"], "--against: c: is the corpus that is to be written"),
    ],
)
def test_a_wrong_option_is_one_line_in_its_own_name(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (line,) = refused(capsys, *GOOD, *words)
    assert line.removeprefix("meshwright data prepare: ").startswith(message)


def test_what_is_missing_is_told_by_the_option_that_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys) == ["INPUT ...: is missing", "--output PREFIX: is missing"]
    (line,) = refused(capsys, "--deduplicate", "exact", "--against", "a", "rows.jsonl", "--output", "c")
    assert "put inputs before --against" in line


def test_wrong_names_of_a_file_are_told_with_their_places_and_keys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(
        "inputs: [rows.jsonl]\noutput: c\ntrain_tokenizer: 280\ntiktoken: gpt9\nclean:\n  rules: [goffer]\n"
        "  thresholds: {gopher.min_wrds: 3, c4.min_sentences: 4}\ndeduplicate:\n  ngram: 5\n  against: [a]\n"
    )
    starts = [
        "c.yaml:4:1: tiktoken: has no use without tokenizer",
        "c.yaml:6:3: clean.rules: rule set 'goffer' is not known",
        "c.yaml:7:16: clean.thresholds.gopher.min_wrds: is not known; did you mean gopher.min_words",
        "c.yaml:7:36: clean.thresholds.c4.min_sentences: has no use without c4 or c4-fineweb in clean.rules",
        "c.yaml:9:3: deduplicate.ngram: has no use without deduplicate.near",
        "c.yaml:10:3: deduplicate.against: has no use without deduplicate.exact or deduplicate.near",
    ]
    lines = refused(capsys, "c.yaml")
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
    (tmp_path / "c.yaml").write_text("inputs: [rows.jsonl]\noutput: c\nhtml: page.html\n")
    assert refused(capsys, "c.yaml") == ["c.yaml:3:1: html: can only be given on the command line; --html"]


def test_names_with_a_nul_are_refused_by_their_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        'inputs: ["a\\0b"]\noutput: "c\\0d"\ntokenizer: "e\\0f"\ndeduplicate: {exact: true, against: ["g\\0h"]}\n'
    )
    assert refused(capsys, "c.yaml") == [
        f"c.yaml:{place}: {key}: {name!r}: has a NUL, which no name of a file can have"
        for place, key, name in (
            ("1:1", "inputs", "a\0b"),
            ("2:1", "output", "c\0d"),
            ("3:1", "tokenizer", "e\0f"),
            ("4:28", "deduplicate.against", "g\0h"),
        )
    ]


def test_names_that_are_not_utf_8_are_read_and_not_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, folder = os.fsdecode(b"caf\xe9.txt"), os.fsdecode(b"d\xe9")
    (tmp_path / file).write_text("one fox")
    (tmp_path / folder).mkdir()
    for name in ("a.txt", os.fsdecode(b"b.\xe9")):
        (tmp_path / folder / name).write_text("two foxes")
    words = ["data", "prepare", file, folder, "--output", "c", *GOOD[3:], "--mask-pii", "--html", "page.html"]
    assert main(words) == 0
    report = json.loads((tmp_path / "c.report.json").read_bytes())
    assert report["inputs"] == ["caf\ufffd.txt", "d\ufffd"]
    assert report["notes"] == ["d\ufffd: passed over .\ufffd (1); --suffix takes them"]
    assert list(report["cleaning"]["groups"]) == report["inputs"]
    assert "caf\ufffd.txt" in (tmp_path / "page.html").read_text("utf-8")
    assert f"note: {report['notes'][0]}" in capsys.readouterr().out
    assert refused(capsys, *GOOD[:1], "--output", folder, *GOOD[3:]) == ['--output: must be UTF-8, not "d\\udce9"']


def test_every_corpus_named_by_against_counts(capsys: pytest.CaptureFixture[str]) -> None:
    lines = refused(capsys, *GOOD, "--deduplicate", "exact", "--against", "a", "--against", "rows.jsonl")
    assert lines[0].startswith("--against: a.signatures.json: no such file")
    assert lines[1].startswith("--against: rows.jsonl: is a file, not a corpus; put inputs before --against")


def test_rules_are_listed_as_json_without_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "--list-rules", "--json"]) == 0
    rules = {rule["name"]: rule for rule in json.loads(capsys.readouterr().out)}
    assert rules["gopher.too_few_words"]["thresholds"] == {"gopher.min_words": 50}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--html", "rows.jsonl", "--overwrite"], "--html rows.jsonl: is an input"),
        (["--html", "notes.txt", "--overwrite"], "--html notes.txt: exists already and is no page of this command"),
        (["--html", "c.bin"], "--html c.bin: is a file of the corpus c"),
        (["--html", "notes.txt"], "--html notes.txt: exists already and is no page of this command"),
        (["--html", "none/page.html"], "--html none/page.html: cannot be written: no such folder"),
        (["--html", "-"], "--html -: a page is written to a file"),
        (["--suffix", ".py"], "suffixes .py (--suffix) have no use without a directory among the inputs"),
        (["--output", "rows.jsonl/c"], "--output rows.jsonl/c: cannot be written: "),
        (["--output", "x" * 240], f"--output {'x' * 240}: cannot be written: File name too long"),
        (["--output", "x" * 300], f"--output {'x' * 300}: cannot be written: File name too long"),
        (["own.json", "--output", "own", "--overwrite"], "own.json: is an input, and --output own would replace it"),
    ],
)
def test_nothing_is_written_over_what_is_not_to_be_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], message: str
) -> None:
    for name in ("notes.txt", "own.json"):
        (tmp_path / name).write_text("mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (line,) = refused(capsys, *(() if words[0] == "own.json" else GOOD[:3]), *words, *GOOD[3:])
    assert line.startswith(message)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_tokenizer_is_replaced_by_no_other_file_of_the_corpus(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["data", "prepare", *GOOD]) == 0
    (tmp_path / "v.json").write_bytes(tokenizer := (tmp_path / "c.tokenizer.json").read_bytes())
    capsys.readouterr()
    (line,) = refused(capsys, GOOD[0], "--output", "v", "--tokenizer", "v.json", "--overwrite")
    assert line == "v.json: is an input, and --output v would replace it; choose another one"
    assert (tmp_path / "v.json").read_bytes() == tokenizer
    assert main(["data", "prepare", *GOOD[:3], "--tokenizer", "c.tokenizer.json", "--overwrite"]) == 0


def test_an_end_of_text_that_only_the_replaced_record_tells_must_be_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Killed between the old record and the new one, the same command would end texts otherwise."""
    assert main(["data", "prepare", *GOOD, "--output", "v"]) == 0
    vocabulary = json.loads((tmp_path / "v.tokenizer.json").read_text())
    (end,) = vocabulary["added_tokens"]
    vocabulary["added_tokens"].append({**end, "id": 1000, "content": "<|im_end|>"})
    (tmp_path / "two.json").write_text(json.dumps(vocabulary))
    corpus = (*GOOD[:3], "--eval-fraction", "0", "--workers", "0")
    assert main(["data", "prepare", *corpus, "--tokenizer", "two.json", "--eos-token", "<|im_end|>"]) == 0
    again = (*corpus, "--tokenizer", "c.tokenizer.json", "--overwrite")
    capsys.readouterr()
    (line,) = refused(capsys, *again)
    assert line == (
        "c.tokenizer.json: that it ends texts with '<|im_end|>' stands in files that this command replaces; say it "
        "with --eos-token '<|im_end|>'"
    )
    assert main(["data", "prepare", *again, "--eos-token", "<|im_end|>"]) == 0
    assert json.loads((tmp_path / "c.json").read_text())["eos_token"] == "<|im_end|>"


def test_a_page_into_a_pipe_is_refused_and_not_waited_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (line,) = refused(capsys, *GOOD, "--html", "pipe")
    assert line == "--html pipe: exists already and is no page of this command; choose another name"


def test_nobody_who_reads_what_is_told_does_not_end_the_work(tmp_path: Path) -> None:
    """As where it is piped into head: the lines of progress have no reader any more."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "meshwright", "data", "prepare", *GOOD]
    assert subprocess.run(command, stdout=writer, stderr=writer, check=False).returncode == 0
    assert (tmp_path / "c.json").exists()
    assert subprocess.run(command, stdout=writer, stderr=writer, check=False).returncode == 2
    os.close(writer)


def test_text_that_the_terminal_has_not_is_shown_by_number(tmp_path: Path) -> None:
    rows = ("\u4e2d\u6587", "this line has words and an end. " * 5)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    command = [sys.executable, "-m", "meshwright", "data", "prepare", *GOOD, "--clean", "c4"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert rb"\u4e2d\u6587" in done.stdout


def test_a_page_can_be_had_in_the_new_folder_of_the_corpus_and_later(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["data", "prepare", *GOOD, "--output", "new/c", "--html", "new/page.html"]) == 0
    first = (tmp_path / "new/page.html").read_text()
    assert "2 of 2 documents kept" in first
    (tmp_path / "new/page.html").write_text(first + "<!-- old -->")
    assert main(["data", "inspect", "new/c", "--html", "new/page.html"]) == 0
    # Only the times of the run are not kept.
    assert (tmp_path / "new/page.html").read_text() == first.replace(_section(first, "Time"), "")
    capsys.readouterr()
    assert main(["data", "inspect", "new/c", "--html", "new/c.idx"]) == 2
    assert main(["data", "inspect", "rows", "--html", "page.html"]) == 2
    assert main(["data", "inspect", "new"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "meshwright data inspect: --html new/c.idx: is a file of the corpus new/c; choose another name",
        "meshwright data inspect: rows.report.json: no such file; `meshwright data prepare` writes it",
        "meshwright data inspect: new: is a folder; its corpora are new/c",
    ]


def test_files_passed_over_and_corpora_compared_with_are_in_the_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir()
    for name in ("a.txt", "b.py", "c.py", "d.md", "LICENSE", "e.zip", ".hidden.py", "f.bin"):
        (tmp_path / "raw" / name).write_text(f"text of {name}")
    exact = (*GOOD[3:], "--deduplicate", "exact")
    assert main(["data", "prepare", "rows.jsonl", "--output", "a", *exact]) == 0
    capsys.readouterr()
    assert main(["data", "prepare", "raw", "--output", "b", *exact, "--against", "a", "--html", "page.html"]) == 0
    told = ["raw: passed over .py (2), .md (1); --suffix takes them"]
    told += ["raw: passed over without suffix (1), .zip (1), which cannot be taken from a directory"]
    report = json.loads((tmp_path / "b.report.json").read_text())
    assert (report["notes"], report["deduplication"]["against"]) == (told, ["a"])
    assert all(note in (tmp_path / "page.html").read_text() for note in told)
    printed = capsys.readouterr()
    assert all(f"note: {note}" in text for note in told for text in printed)
    assert main(["data", "prepare", "raw", "--output", "c", "--suffix", ".py,md", *GOOD[3:]]) == 0
    assert json.loads((tmp_path / "c.json").read_text())["files"] == 3


@pytest.mark.parametrize("words", [["--list-rules"], ["--list-rules", "--json"]], ids=["small", "more than a buffer"])
def test_a_reader_that_has_gone_is_no_failure(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "meshwright", "data", "prepare", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def _section(page: str, title: str) -> str:
    start = page.index(f"<section><h2>{title}</h2>")
    # With the line end that joins it to the section before.
    return page[start - 1 : page.index("</section>", start) + len("</section>")]
