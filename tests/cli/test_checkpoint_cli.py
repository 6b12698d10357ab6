"""``meshwright checkpoint`` as a user runs it."""

import json
import os
from pathlib import Path

import pytest
import torch

from meshwright.checkpoint import store
from meshwright.cli import main


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with two checkpoints."""
    for step in (10, 20):
        store.save(
            tmp_path / "run" / "checkpoints",
            step,
            tensors={
                "model.embedding.weight": torch.full((8, 4), float(step)),
                **{f"model.layers.{i}.mlp.up.weight": torch.ones(4, 6) for i in range(3)},
                "optimizer.updates": torch.tensor(float(step)),
            },
            state={"layout": "dp2 tp2 zero1", "counters": {"step": step, "tokens": step * 1024}, "config": "seed: 7\n"},
            rank_state={"cpu": torch.get_rng_state()},
            run_id="run-a",
        )
    return tmp_path / "run"


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_verify_reads_every_byte_of_every_checkpoint_of_a_run(run_folder, capsys):
    older, newer = (run_folder / "checkpoints" / f"step-000000{step}" for step in (10, 20))
    assert main(["checkpoint", "verify", str(run_folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{older}: sound", f"{newer}: sound"]
    flip_a_bit(older / "tensors" / "__0_0.distcp")
    assert main(["checkpoint", "verify", str(run_folder)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{older}: damaged",
        "  tensors/__0_0.distcp has the right size but a wrong checksum",
        f"{newer}: sound",
    ]
    assert main(["checkpoint", "verify", str(newer)]) == 0
    assert main(["checkpoint", "verify", "--json", str(older)]) == 1
    (report,) = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert report["path"] == str(older)
    assert not report["sound"]
    assert "wrong checksum" in report["problems"][0]


def test_verify_tells_an_interrupted_save_and_a_folder_without_any(run_folder, tmp_path, capsys):
    partial = run_folder / "checkpoints" / ".step-00000020.partial"
    os.rename(run_folder / "checkpoints" / "step-00000020", partial)
    (partial / "manifest.json").unlink()
    assert main(["checkpoint", "verify", str(partial)]) == 1
    assert "has no manifest.json: the save never finished" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    for nothing in ("empty", "missing"):
        assert main(["checkpoint", "verify", str(tmp_path / nothing)]) == 2
        assert "no checkpoint here" in capsys.readouterr().err
