"""A checkpoint cut offline for another layout holds the same values in the blocks that layout's ranks save (B-17)."""

from pathlib import Path

import pytest
import torch

from meshwright.checkpoint import store
from meshwright.checkpoint.dcp_files import Reader
from meshwright.cli import main
from ranks import run_ranks
from trainer_runs import by_step, ranks_of, train, write_config

# The trainer's layouts and how the command names them.
NAMES = {
    "one": "dp1",
    "dp2": "dp2",
    "dp2_zero3": "dp2 zero3",
    "tp2": "tp2",
    "dp2tp2_zero2_seq": "dp2tp2zero2",
    "dp2pp2_zero1": "dp2 pp2 zero1",
    "tp2pp2": "tp2_pp2",
}


def go(folder: Path, layout: str, *overrides: str, **sections) -> None:
    run_ranks(train, ranks_of(layout), write_config(folder, layout, **sections), overrides)


def content(checkpoint: Path) -> dict[str, torch.Tensor]:
    target = {n: torch.zeros(shape, dtype=dtype) for n, (shape, dtype) in store.tensor_metadata(checkpoint).items()}
    store.load_tensors(checkpoint, target)
    return target


def blocks(checkpoint: Path) -> dict[str, set]:
    entries = Reader(checkpoint / "tensors").read_metadata().state_dict_metadata
    return {name: {(tuple(c.offsets), tuple(c.sizes)) for c in entry.chunks} for name, entry in entries.items()}


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("tied", [False, True])
def test_blocks_and_values_are_those_of_a_save_on_that_layout(tmp_path, capsys, layout, tied):
    sections = {"model": {"tie_word_embeddings": tied}, "train": {"train_steps": 1}}
    source_layout = "dp2_zero3" if layout == "one" else "one"
    for name in (source_layout, layout):
        go(tmp_path, name, output_dir=str(tmp_path / name), **sections)
    source = tmp_path / source_layout / "checkpoints" / "step-00000001"
    saved = tmp_path / layout / "checkpoints" / "step-00000001"
    capsys.readouterr()
    command = ["checkpoint", "reshard", str(source), str(tmp_path / "new"), "--layout", NAMES[layout]]
    assert main(command) == 0
    made = tmp_path / "new" / "step-00000001"
    assert capsys.readouterr().out.startswith(f"{made}: ")
    assert store.verify(made) == []
    before, after = content(source), content(made)
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert blocks(made) == blocks(saved)
    # A file for each rank that has something to write, none larger than it must be.
    sizes = [file.stat().st_size for file in (made / "tensors").glob("*.distcp")]
    assert len(sizes) == ranks_of(layout)
    assert main(command) == 2
    assert "exists; choose another folder" in capsys.readouterr().err


def test_a_run_goes_on_from_what_was_resharded(tmp_path, capsys):
    go(tmp_path, "one", "train.train_steps=6", output_dir=str(tmp_path / "straight"))
    go(tmp_path, "one", "checkpoint.save_checkpoint_steps=3", output_dir=str(tmp_path / "first"))
    source = tmp_path / "first" / "checkpoints" / "step-00000003"
    assert main(["checkpoint", "reshard", str(source), str(tmp_path / "new"), "--layout", "dp2tp2zero2"]) == 0
    capsys.readouterr()
    go(tmp_path, "dp2tp2_zero2_seq", f"checkpoint.resume={tmp_path / 'new' / 'step-00000003'}")
    assert "saved with layout dp2 tp2 zero2; random numbers of dropout start anew" in capsys.readouterr().out
    straight = {step: loss for step, loss in by_step(tmp_path / "straight", "train/loss").items() if step > 3}
    assert by_step(tmp_path / "out", "train/loss") == {s: (pytest.approx(x, abs=1e-4),) for s, (x,) in straight.items()}


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ("tp3", "num_heads"),
        ("pp5", "4 layers cannot fill 5 stages"),
        ("four", "expected such as tp4"),
        ("tp2 tp4", "named twice"),
        ("tp0", "1 or more"),
        ("dp2 zero4", "zero is 0 to 3"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path_factory, tmp_path, capsys, layout, told):
    go(tmp_path, "one", "train.train_steps=1")
    assert main(["checkpoint", "reshard", str(tmp_path / "out"), str(tmp_path / "new"), "--layout", layout]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_damaged_source_is_refused_and_nothing_is_left(tmp_path, capsys):
    go(tmp_path, "one", "train.train_steps=1")
    file = tmp_path / "out" / "checkpoints" / "step-00000001" / "tensors" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    source = str(tmp_path / "out" / "checkpoints" / "step-00000001")
    assert main(["checkpoint", "reshard", source, str(tmp_path / "new"), "--layout", "tp2"]) == 1
    assert "is damaged: tensors/__0_0.distcp has the right size but a wrong checksum" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
