"""Checkpoints that the trainer writes beside its steps."""

import json
from pathlib import Path

import pytest
import torch

from meshwright.checkpoint import store
from ranks import run_ranks
from trainer_runs import Disturbance, InterruptedRun, all_metrics, by_step, ranks_of, train, write_config

TRAINED = ("train/loss", "train/grad_norm", "train/lr")
EVERY_STEP = {"save_checkpoint_steps": 1, "keep_checkpoint_max": 10}


def go(folder: Path, layout: str, *overrides: str, disturbance: Disturbance | None = None, **sections) -> None:
    config = write_config(folder, layout, model={"hidden_dropout": 0.1}, **sections)
    run_ranks(train, ranks_of(layout), config, overrides, disturbance)


def content(checkpoint: Path) -> dict[str, torch.Tensor]:
    target = {n: torch.zeros(shape, dtype=dtype) for n, (shape, dtype) in store.tensor_metadata(checkpoint).items()}
    store.load_tensors(checkpoint, target)
    return target


@pytest.fixture(scope="module", params=["dp2_zero1", "dp2tp2_zero2_seq", "dp2pp2_zero1"])
def saved(request, tmp_path_factory):
    """(layout, folder): ``blocking`` and ``beside`` in it are the same run, saved after every step."""
    folder = tmp_path_factory.mktemp(request.param)
    for name, beside in (("blocking", "false"), ("beside", "true")):
        overrides = (f"checkpoint.async_save={beside}", f"output_dir={folder / name}")
        go(folder, request.param, *overrides, checkpoint=EVERY_STEP)
    return request.param, folder


def test_every_save_beside_training_holds_what_a_blocking_one_holds(saved):
    layout, folder = saved
    assert by_step(folder / "beside", *TRAINED) == by_step(folder / "blocking", *TRAINED)
    roots = [folder / name / "checkpoints" for name in ("blocking", "beside")]
    steps = [f"step-{step:08d}" for step in range(1, 7)]
    for root in roots:
        assert sorted(path.name for path in root.iterdir()) == steps
    for step in steps:
        blocking, beside = (content(root / step) for root in roots)
        assert blocking.keys() == beside.keys()
        assert all(torch.equal(tensor, beside[name]) for name, tensor in blocking.items())
        for rank in range(ranks_of(layout)):
            states = [store.load_rank_state(root / step, rank) for root in roots]
            assert torch.equal(states[0]["cpu"], states[1]["cpu"])
        counters = [json.loads((root / step / "state.json").read_text())["counters"] for root in roots]
        assert counters[0] == counters[1]


def test_stall_and_duration_of_every_save_are_metrics(saved):
    _, folder = saved
    for name in ("blocking", "beside"):
        lines = all_metrics(folder / name)
        stalls = {line["step"]: line["checkpoint/stall_s"] for line in lines if "checkpoint/stall_s" in line}
        durations = [line["checkpoint/save_s"] for line in lines if "checkpoint/save_s" in line]
        assert list(stalls) == [1, 2, 3, 4, 5, 6]
        assert len(durations) == 6
        if name == "blocking":
            assert durations == list(stalls.values())


def test_b16_a_run_that_saves_beside_training_goes_on_bit_for_bit(tmp_path, capsys):
    beside = ("checkpoint.async_save=true", "checkpoint.save_checkpoint_steps=2")
    go(tmp_path, "dp2_zero3", *beside, f"output_dir={tmp_path / 'straight'}")
    with pytest.raises(InterruptedRun):
        go(tmp_path, "dp2_zero3", *beside, disturbance=Disturbance(stop_after=5))
    capsys.readouterr()
    go(tmp_path, "dp2_zero3", *beside)
    # The last save is told too, although no step follows it.
    assert f"checkpoint: {tmp_path / 'out' / 'checkpoints' / 'step-00000006'}" in capsys.readouterr().out
    assert by_step(tmp_path / "out", *TRAINED) == by_step(tmp_path / "straight", *TRAINED)
    starts = json.loads((tmp_path / "out" / "run.json").read_text())["starts"]
    # The save of step 4 was under way when the run was interrupted: it may or may not have been completed.
    assert Path(starts[1]["resumed_from"]).name in ("step-00000002", "step-00000004")
