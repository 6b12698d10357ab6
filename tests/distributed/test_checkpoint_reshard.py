"""A checkpoint cut offline for another layout holds the same values in the blocks that layout's ranks save (B-17)."""

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from meshwright.checkpoint import store
from meshwright.checkpoint.dcp_files import Reader
from meshwright.cli import main
from meshwright.config.load import load_config
from meshwright.config.run import resolve, resolved_yaml
from meshwright.spec.parameters import parameter_shapes
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoint that a run of one step on a layout saves, made once."""
    folder = tmp_path_factory.mktemp("saved")

    @functools.cache
    def make(layout: str, tied: bool) -> Path:
        out = folder / f"{layout}-{tied}"
        sections = {"model": {"tie_word_embeddings": tied}, "train": {"train_steps": 1}}
        go(folder, layout, output_dir=str(out), **sections)
        return out / "checkpoints" / "step-00000001"

    return make


# Of a tied model a stage has a copy of the embedding, which is saved once.
CASES = [*((layout, False) for layout in NAMES), ("dp2pp2_zero1", True), ("tp2pp2", True)]


@pytest.mark.parametrize(("layout", "tied"), CASES)
def test_blocks_and_values_are_those_of_a_save_on_that_layout(tmp_path, capsys, saved, layout, tied):
    source = saved("dp2_zero3" if layout == "one" else "one", tied)
    expected = saved(layout, tied)
    capsys.readouterr()
    command = ["checkpoint", "reshard", str(source), str(tmp_path / "new"), "--layout", NAMES[layout]]
    assert main(command) == 0
    made = tmp_path / "new" / "step-00000001"
    assert capsys.readouterr().out.startswith(f"{made}: ")
    assert store.verify(made) == []
    before, after = content(source), content(made)
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert blocks(made) == blocks(expected)
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
def test_a_layout_that_cannot_be_is_refused(tmp_path, capsys, saved, layout, told):
    command = ["checkpoint", "reshard", str(saved("one", False)), str(tmp_path / "new"), "--layout", layout]
    assert main(command) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_damaged_source_is_refused_and_nothing_is_left(tmp_path, capsys, saved):
    source = shutil.copytree(saved("one", False), tmp_path / "old")
    file = source / "tensors" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert main(["checkpoint", "reshard", str(source), str(tmp_path / "new"), "--layout", "tp2"]) == 1
    assert "is damaged: tensors/__0_0.distcp has the right size but a wrong checksum" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


MEASURED = """
import sys
from meshwright.cli import main
import meshwright.train.reshard

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

before = peak()
code = main(sys.argv[1:])
print(peak() - before)
sys.exit(code)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_is_about_the_largest_tensor_twice(tmp_path):
    sizes = {"num_layers": 1, "hidden_size": 512, "intermediate_size": 256, "num_heads": 8, "num_kv_heads": 2}
    model = sizes | {"vocab_size": 16384, "tie_word_embeddings": True}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"model": model, "dataset": {"paths": ["x"]}}))
    run = resolve(load_config(path), 1)
    shapes = parameter_shapes(run.model, padded=True)
    prefixes = ("model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")
    tensors = {prefix + name: torch.ones(shape) for prefix in prefixes for name, shape in shapes.items()}
    state = {"config": resolved_yaml(run), "counters": {}}
    source = store.save(tmp_path / "old", 1, tensors=tensors, state=state, rank_state={}, run_id="a")
    largest, whole = (f(t.nbytes for t in tensors.values()) for f in (max, sum))
    command = [sys.executable, "-c", MEASURED, "checkpoint", "reshard", source, tmp_path / "new", "--layout", "tp2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.splitlines()[-1])
    assert peak < 2 * largest + 20e6 < 0.8 * whole
