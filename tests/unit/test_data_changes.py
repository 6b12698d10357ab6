"""Files that change or vanish while a corpus is made of them: told of, and never a corpus of old and new."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.data.errors import DataError
from meshwright.data.preparation import prepare as preparing
from meshwright.data.preparation.prepare import prepare
from meshwright.data.preparation.shards import plan_shards

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
