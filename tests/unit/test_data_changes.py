"""Files that change or vanish while a corpus is made of them: told of, and never a corpus of old and new."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.errors import DataError
from meshwright.data.preparation import prepare as preparing
from meshwright.data.preparation.prepare import prepare
from meshwright.data.preparation.shards import plan_shards
from meshwright.data.preparation.stages import ShardStage, SoleStage

SETTINGS = {"train_vocab_size": 300, "eval_fraction": 0}


def rows(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_a_file_that_vanishes_after_it_was_found_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [rows(tmp_path / f"{name}.jsonl", f"document {name}") for name in "ab"]
    check: Callable[..., None] = preparing.check_inputs_stay

    def check_and_remove(*arguments: object) -> None:
        check(*arguments)
        files[1].unlink()

    monkeypatch.setattr(preparing, "check_inputs_stay", check_and_remove)
    with pytest.raises(DataError, match=r"b\.jsonl: cannot be read: No such file or directory"):
        prepare(files, tmp_path / "c", **SETTINGS)
    with pytest.raises(DataError, match=r"b\.jsonl: cannot be read: No such file or directory"):
        plan_shards(files)


@pytest.mark.parametrize("other", [("new",), ()], ids=["of more documents", "of another shape"])
@pytest.mark.parametrize("title", ["signing", "comparing", "finding duplicates"])
def test_a_corpus_held_against_that_changes_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, other: tuple[str, ...]
) -> None:
    settings = {**SETTINGS, "deduplication": Deduplication(exact=True)}
    inputs = [rows(tmp_path / "in.jsonl", "old", "new", "last")]
    prepare([rows(tmp_path / "old.jsonl", "old")], tmp_path / "old", **settings)
    theirs = settings if other else {**SETTINGS, "deduplication": Deduplication(exact=True, near=True)}
    prepare([rows(tmp_path / "other.jsonl", *other, "x")], tmp_path / "other", **theirs)
    for kind in (ShardStage, SoleStage):

        def change_and_run(stage: Any, *arguments: Any, run: Any = kind.run, **options: Any) -> None:
            if stage.title == title:
                shutil.copy(tmp_path / "other.signatures.npy", tmp_path / "old.signatures.npy")
            run(stage, *arguments, **options)

        monkeypatch.setattr(kind, "run", change_and_run)
    with pytest.raises(DataError, match=r"old\.signatures\.npy: has changed since this command began; run it again"):
        prepare(inputs, tmp_path / "c", against=[tmp_path / "old"], **settings)
    assert not (tmp_path / "c.bin").exists()
