"""``meshwright checkpoint`` as a user runs it."""

import hashlib
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


def test_inspect_shows_the_newest_checkpoint_of_a_run_as_a_tree(run_folder, capsys):
    newest = run_folder / "checkpoints" / "step-00000020"
    assert main(["checkpoint", "inspect", str(run_folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(newest)
    assert lines[1].startswith("step 20 of run run-a, saved by 1 ranks with meshwright ")
    assert lines[2:5] == ["layout: dp2 tp2 zero1", "counters: step 20, tokens 20,480", "parameters: 104"]
    assert lines[7:12] == [
        "|-- model  104 values, 416 B",
        "|   |-- embedding.weight  [8, 4] float32 128 B",
        "|   `-- layers  72 values, 288 B",
        "|       `-- 0-2.mlp.up.weight  3 x [4, 6] float32 96 B",
        "`-- optimizer.updates  [] float32 4 B",
    ]
    sums = {line.split()[2]: line.split()[0] for line in lines[13:]}
    for name, sha256 in sums.items():
        assert hashlib.sha256((newest / name).read_bytes()).hexdigest() == sha256
    assert sums.keys() >= {"state.json", "tensors/.metadata", "ranks/00000.json"}


def test_inspect_gives_everything_as_json_and_the_config_as_yaml(run_folder, capsys):
    older = run_folder / "checkpoints" / "step-00000010"
    assert main(["checkpoint", "inspect", str(older), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["step"], report["world_size"], report["state"]["layout"]) == (10, 1, "dp2 tp2 zero1")
    assert {t["name"]: t["shape"] for t in report["tensors"]}["model.layers.2.mlp.up.weight"] == [4, 6]
    assert report["bytes"] == sum(
        file.stat().st_size for file in older.rglob("*") if file.name != "manifest.json" and file.is_file()
    )
    assert main(["checkpoint", "inspect", str(older), "--config"]) == 0
    assert capsys.readouterr().out == "seed: 7\n"


def test_inspect_names_what_it_passes_over_where_nothing_is_complete(run_folder, capsys):
    root = run_folder / "checkpoints"
    for folder in root.iterdir():
        (folder / "state.json").unlink()
    assert main(["checkpoint", "inspect", str(run_folder)]) == 2
    told = capsys.readouterr().err
    assert f"passed over {root / 'step-00000010'}: state.json is missing" in told
    assert main(["checkpoint", "inspect", str(root / "step-00000010")]) == 2
    assert "is not complete: state.json is missing" in capsys.readouterr().err
