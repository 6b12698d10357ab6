"""Every stage of ``data prepare`` killed at some point and gone on with: the same bytes, nothing done twice."""

import fnmatch
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from small_shards import SHARD_BYTES, start

from meshwright.data.clean.cleaner import Cleaning
from meshwright.data.clean.rows import origin, read_rows, row_of
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.errors import DataError
from meshwright.data.inputs.part import Source, Tally
from meshwright.data.preparation import shards, stages
from meshwright.data.preparation.finish_stage import OUTPUTS
from meshwright.data.preparation.prepare import prepare
from meshwright.data.preparation.workplace import workplace_path

GOOD = "Number {} of these letters is for the people that have to walk with care. It has a second line. "
SETTINGS: dict[str, Any] = {
    "train_vocab_size": 280,
    "eval_fraction": 0.2,
    "cleaning": Cleaning(rule_sets=("c4",)),
    "deduplication": Deduplication(exact=True),
}
MARKERS = ("clean-*/??????.json", "signatures-*/*.npy", "duplicates-*/*.json", "*/tokenizer.json", "tokens-*/*.json")
MARKERS += ("duplicates-*/*.pairs.npy", "corpus-*/*.written", "corpus-*/finished.json")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two .jsonl files and a text; every fifth document is to be cleaned away, every seventh repeats another."""
    root = tmp_path_factory.mktemp("source")
    rows = [f"{{ {n} }} is code." if n % 5 == 0 else GOOD.format(n % 7 and n) * 3 for n in range(60)]
    (root / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows[:40]))
    (root / "b.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in [*rows[40:], " "]))
    (root / "c.txt").write_text(GOOD.format("c") * 3 + "\nHome | About")
    return root


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run from beginning to end writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
        output = tmp_path_factory.mktemp("whole") / "out"
        prepare([source], output, **SETTINGS)
    return outputs(output)


def outputs(prefix: Path) -> dict[str, bytes]:
    return {suffix: path.read_bytes() for suffix in OUTPUTS if (path := Path(f"{prefix}{suffix}")).exists()}


def finished(workplace: Path) -> set[str]:
    """The files that mark shards and stages as finished."""
    return {str(path) for pattern in MARKERS for path in workplace.glob(pattern)}


def die(*ignored: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_and_die(source: Path, output: Path, event: str, pattern: str, count: int, workers: int, **changes: Any) -> None:
    """Prepare a corpus up to the COUNT-th file that matches and gets its name, copy, step of progress, or removal."""
    left = [count]
    replace, copy, update, unlink = os.replace, os.copy_file_range, stages.Progress.update, os.unlink

    def replace_or_die(old: str | Path, new: str | Path) -> None:
        hit = fnmatch.fnmatch(str(new), pattern)
        left[0] -= hit
        if hit and left[0] == 0 and event == "before":
            die()
        replace(old, new)
        if hit and left[0] == 0 and event == "after":
            die()

    def copy_or_die(source: int, target: int, size: int, *offsets: int) -> int:
        left[0] -= 1
        if left[0] == 0:
            copy(source, target, size // 2, *offsets)
            die()
        return copy(source, target, size, *offsets)

    def update_or_die(progress: stages.Progress, *done: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            die()
        update(progress, *done)

    def unlink_or_die(path: str | Path, *, dir_fd: int | None = None) -> None:
        # Only the removal of whole directories gives one.
        left[0] -= dir_fd is not None
        if left[0] == 0:
            die()
        unlink(path, dir_fd=dir_fd)

    shards.SHARD_BYTES = SHARD_BYTES
    if event in ("before", "after"):
        os.replace = replace_or_die
    elif event == "copying":
        os.copy_file_range = copy_or_die
    elif event == "removing":
        os.unlink = unlink_or_die
    else:
        stages.Progress.update = update_or_die
    prepare([source], output, workers=workers, **{**SETTINGS, **changes})


def note_written(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Files that this process gives their names from now on."""
    written: set[str] = set()

    def note(old: str | Path, new: str | Path) -> None:
        written.add(str(new))
        replace(old, new)

    replace = os.replace
    monkeypatch.setattr(os, "replace", note)
    return written


@pytest.mark.parametrize(
    ("event", "pattern", "count", "workers"),
    [
        ("before", "*/clean-*/??????.json", 3, 0),
        ("before", "*/signatures-*.npy", 2, 0),
        ("before", "*/duplicates-*.pairs.npy", 1, 0),
        ("before", "*/duplicates-*.drop.npy", 2, 0),
        ("before", "*/tokenizer-*/tokenizer.json", 1, 0),
        ("before", "*/tokens-*/??????.bin", 2, 0),
        ("before", "*/tokens-*/??????.json", 3, 0),
        ("copying", "", 3, 0),
        ("after", "*.written", 2, 0),
        ("before", "*/finished.json", 1, 0),
        ("before", "*/out.idx", 1, 0),
        ("before", "*/out.json", 1, 0),
        ("after", "*/out.json", 1, 0),
        ("progress", "", 3, 2),
        ("progress", "", 15, 2),
    ],
)
def test_killed_in_any_stage_and_gone_on(
    source: Path,
    tmp_path: Path,
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    pattern: str,
    count: int,
    workers: int,
) -> None:
    output = tmp_path / "out"
    process = start(run_and_die, source, output, event, pattern, count, workers)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    done = finished(workplace_path(output))
    written = note_written(monkeypatch)
    monkeypatch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
    prepare([source], output, workers=workers, **SETTINGS)
    assert outputs(output) == expected
    assert not done & written
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def killed(source: Path, output: Path, *how: Any, **changes: Any) -> None:
    process = start(run_and_die, source, output, *how, 0, **changes)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("count", [1, 12, 25])
def test_killed_in_the_clean_up_and_gone_on(
    source: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    output = tmp_path / "out"
    killed(source, output, "removing", "", count, overwrite=True)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] != []
    assert outputs(output) == expected
    monkeypatch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
    prepare([source], output, overwrite=True, **SETTINGS)
    assert outputs(output) == expected
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_corpus_that_was_finished_is_no_leave_to_replace_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    killed(source, output, "after", "*/out.json", 1)
    monkeypatch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
    mask = tmp_path / "out.mask"
    mask.write_text("of others")
    with pytest.raises(DataError, match=r"out\.mask: exists already"):
        prepare([source], output, **SETTINGS)
    assert mask.read_text() == "of others"
    mask.unlink()
    (tmp_path / "out.idx").unlink()
    before = outputs(output)
    with pytest.raises(DataError, match=r"out\.idx: was removed or changed .*; remove .*\.out\.partial to"):
        prepare([source], output, **SETTINGS)
    assert outputs(output) == before


def test_the_tokenizer_that_is_replaced_by_itself_is_there_to_go_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    monkeypatch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
    prepare([source], output, **SETTINGS)
    changes = {"train_vocab_size": None, "tokenizer": tmp_path / "out.tokenizer.json", "overwrite": True}
    before = outputs(output)
    killed(source, output, "before", "*/out.tokenizer.json", 1, **changes)
    prepare([source], output, **{**SETTINGS, **changes})
    assert outputs(output) == before


def test_token_files_that_are_not_whole_are_never_finished(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    killed(source, output, "before", "*/finished.json", 1)
    monkeypatch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
    (tokens,) = workplace_path(output).glob("corpus-*/corpus.bin")
    os.truncate(tokens, 100)
    with pytest.raises(DataError, match=r"corpus\.bin: has 100 bytes, not \d+; remove .*\.out\.partial and run again"):
        prepare([source], output, **SETTINGS)
    assert outputs(output) == {}


def test_other_settings_keep_the_stages_before_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    process = start(run_and_die, source, output, "before", "*/finished.json", 1, 0)
    process.join(60)
    done = finished(workplace_path(output))
    written = note_written(monkeypatch)
    monkeypatch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
    prepare([source], output, show_progress=True, **{**SETTINGS, "train_vocab_size": 290})
    kept = {name for name in done if any(stage in name for stage in ("/clean-", "/signatures-", "/duplicates-"))}
    assert len(kept) > 5
    assert not kept & written
    assert "has results of other inputs, settings or versions (corpus-" in capsys.readouterr().err


@pytest.mark.parametrize("cleaning", [Cleaning(), Cleaning(mask_pii=True)], ids=["as it is", "cleaned"])
@pytest.mark.parametrize(("deduplication", "repaired"), [(Deduplication(), 2), (Deduplication(exact=True), 1)])
def test_documents_with_bytes_that_are_not_utf8_are_those_kept(
    tmp_path: Path, cleaning: Cleaning, deduplication: Deduplication, repaired: int
) -> None:
    row = '{"text": "caf\u00e9 of anna@herons.org"}\n'
    (tmp_path / "in.jsonl").write_bytes(row.encode("latin-1") * 2 + row.encode())
    settings = {**SETTINGS, "eval_fraction": 0, "cleaning": cleaning, "deduplication": deduplication}
    record = prepare([tmp_path / "in.jsonl"], tmp_path / "out", **settings)
    assert (record.invalid_utf8, record.train.documents) == (repaired, 1 + repaired)
    assert json.loads((tmp_path / "out.report.json").read_text())["invalid_utf8"] == repaired


def test_rows_of_cleaned_documents_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, files = tmp_path / "000000.jsonl", [Path("a.jsonl"), Path("b.parquet")]
    read = [Source("one\u2028\n", files[0], 7, "byte", True), Source("two", files[1], 8, "row", False)]
    path.write_bytes(b"".join(row_of(source, f"{source.text} kept") for source in read))
    tally = Tally()
    found = list(read_rows(path, tally))
    assert [(source.text, source.repaired) for source in found] == [("one\u2028\n kept", True), ("two kept", False)]
    assert [origin(source) for source in found] == [{"file": "a.jsonl", "byte": 7}, {"file": "b.parquet", "row": 8}]
    assert (tally.documents, tally.invalid_utf8, tally.bytes_read) == (2, 1, path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"000000\.jsonl: is damaged .*; remove .* and run again"):
        list(read_rows(path, Tally()))
