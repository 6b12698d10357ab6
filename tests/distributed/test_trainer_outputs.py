"""What a run leaves behind: evaluations, samples, traces, event files, its record; and runs of compiled blocks."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from meshwright.config.load import load_config
from meshwright.data.errors import DataWorkerError
from ranks import run_ranks
from trainer_runs import (
    SEQ_LENGTH,
    Disturbance,
    all_metrics,
    by_step,
    metrics,
    ranks_of,
    train,
    write_config,
)

HELD_OUT_TOKENS = 13 * SEQ_LENGTH


def go(folder: Path, layout: str, *overrides: str, disturbance: Disturbance | None = None, **sections: Any) -> None:
    run_ranks(train, ranks_of(layout), write_config(folder, layout, **sections), overrides, disturbance)


def judge(checkpoint: Path, held_out: Path, batch_size: int) -> tuple[float, int, list[int]]:
    """Held-out loss and tokens of a checkpoint, and what it goes on with."""
    import torch

    from meshwright.data.dataset import TokenDataset
    from meshwright.parallel.devices import KINDS
    from meshwright.train.evaluate import evaluate
    from meshwright.train.generate import generate
    from meshwright.train.inference import load_model

    loaded = load_model(checkpoint, kind=KINDS["cpu"], device=torch.device("cpu"))
    assert not loaded.model.training
    data = TokenDataset([held_out], SEQ_LENGTH, pad_last=True)
    result = evaluate(loaded.model, data, batch_size=batch_size)
    likeliest = [generate(loaded.model, [5, 7, 9], max_tokens=24, eos_id=-1, temperature=0, seed=s) for s in (0, 1)]
    assert likeliest[0] == likeliest[1]
    drawn = [generate(loaded.model, [5, 7, 9], max_tokens=24, eos_id=-1, temperature=1.0, seed=s) for s in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    return result.loss, result.tokens, likeliest[0]


def test_evaluation_and_greedy_samples_do_not_depend_on_the_layout(tmp_path):
    found = {}
    for layout in ("one", "dp2tp2_zero2_seq", "dp2pp2_zero1"):
        go(
            tmp_path,
            layout,
            output_dir=str(tmp_path / layout),
            train={"train_steps": 12, "eval_steps": 5},
            dataset={"eval_paths": [str(tmp_path / "held_out")]},
        )
        lines = [line for line in metrics(tmp_path / layout) if "val/loss" in line]
        assert [line["step"] for line in lines] == [5, 10, 12]
        for line in lines:
            assert line["val/tokens"] == HELD_OUT_TOKENS
            assert line["val/ppl"] == pytest.approx(math.exp(line["val/loss"]))
        assert lines[-1]["val/loss"] < lines[0]["val/loss"]
        folder = tmp_path / layout / "checkpoints" / "step-00000012"
        (judged,) = run_ranks(judge, 1, folder, tmp_path / "held_out", 3)
        loss, tokens, text = judged
        assert tokens == HELD_OUT_TOKENS
        assert loss == pytest.approx(lines[-1]["val/loss"], abs=1e-5)
        found[layout] = (loss, text)
    one = found.pop("one")
    for loss, text in found.values():
        assert loss == pytest.approx(one[0], abs=1e-4)
        assert text == one[1]


def test_b24_b_a_rank_whose_data_hangs_is_named_with_its_stack(tmp_path):
    message = r"(?s)^data thread hangs at step 3: nothing came in 2 s, the limit of dataset\.timeout_s\n.*time\.sleep"
    with pytest.raises(DataWorkerError, match=message) as failure:
        go(tmp_path, "dp2", dataset={"timeout_s": 2}, disturbance=Disturbance(hangs=1))
    assert "rank 1" in failure.value.__notes__[0]


def test_evaluation_changes_nothing_in_training_not_even_dropout(tmp_path):
    common = {"model": {"hidden_dropout": 0.1}}
    go(tmp_path, "dp2_zero3", output_dir=str(tmp_path / "without"), **common)
    held_out = {"eval_paths": [str(tmp_path / "held_out")]}
    go(tmp_path, "dp2_zero3", "train.eval_steps=1", "train.eval_batches=1", dataset=held_out, **common)
    names = ("train/loss", "train/grad_norm")
    assert by_step(tmp_path / "out", *names) == by_step(tmp_path / "without", *names)
    lines = [line for line in metrics(tmp_path / "out") if "val/loss" in line]
    assert [line["val/tokens"] for line in lines] == [8 * SEQ_LENGTH] * 6


def test_profile_steps_writes_a_trace_of_those_steps_for_each_rank(tmp_path):
    go(tmp_path, "pp2", "monitor.profile_steps=[2, 3]", "checkpoint.save_checkpoint_steps=3")
    for rank in (0, 1):
        trace = json.loads((tmp_path / "out" / "profile" / f"rank{rank}.json").read_text())
        names = [event.get("name", "") for event in trace["traceEvents"]]
        assert sum(name == "aten::_fused_adamw_" for name in names) == 2 * 2
        assert any("mm" in name for name in names)


def test_a_resume_past_the_profiled_steps_leaves_their_trace_alone(tmp_path):
    go(tmp_path, "one", "monitor.profile_steps=[1, 2]", "train.train_steps=3")
    file = tmp_path / "out" / "profile" / "rank0.json"
    before = file.read_bytes()
    go(tmp_path, "one", "monitor.profile_steps=[1, 2]", "train.train_steps=6")
    assert file.read_bytes() == before


def test_tensorboard_events_hold_the_metrics_of_the_jsonl_file(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    go(
        tmp_path,
        "dp2",
        "train.eval_steps=3",
        monitor={"tensorboard": True},
        dataset={"eval_paths": [str(tmp_path / "held_out")]},
    )
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    lines = all_metrics(tmp_path / "out")
    names = set().union(*lines) - {"step"}
    assert {"train/loss", "val/loss", "speed/step_ms", "memory/peak_gib"} <= names
    assert set(events.Tags()["scalars"]) == names
    for name in ("train/loss", "val/loss", "train/lr"):
        values = {event.step: event.value for event in events.Scalars(name)}
        assert values == pytest.approx({line["step"]: line[name] for line in lines if name in line}, rel=1e-6)


def test_run_json_records_every_start(tmp_path):
    import torch

    import meshwright

    go(tmp_path, "one")
    go(tmp_path, "dp2", "train.train_steps=7")
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    first, second = record["starts"]
    assert (first["resumed_from"], first["world_size"], first["layout"]) == (None, 1, "dp1 zero0")
    assert (second["world_size"], second["layout"]) == (2, "dp2 zero0")
    assert second["resumed_from"] == str(tmp_path / "out" / "checkpoints" / "step-00000006")
    for start in record["starts"]:
        assert start["packages"]["torch"] == torch.__version__
        assert start["packages"]["meshwright"] == meshwright.__version__
        assert len(start["git"]["commit"]) == 40
        assert isinstance(start["git"]["dirty"], bool)
    assert first["data_fingerprint"] == second["data_fingerprint"]
    assert first["config_hash"] != second["config_hash"]
    owners = [json.loads(p.read_text()) for p in (tmp_path / "out" / "checkpoints").glob("step-*/manifest.json")]
    assert {owner["run_id"] for owner in owners} == {record["run_id"]}
    # The config of the last start is the one beside it.
    (tmp_path / "again.yaml").write_text(record["config"])
    assert load_config(tmp_path / "again.yaml").config == load_config(tmp_path / "out" / "config.yaml").config


@pytest.mark.parametrize(
    ("layout", "recompute"),
    [("dp2tp2", {}), ("pp2", {"recompute": True})],
)
def test_compiled_blocks_train_to_the_same_losses(tmp_path, layout, recompute):
    names = ("train/loss", "train/grad_norm")
    found = {}
    for name, compiled in (("eager", False), ("compiled", True)):
        go(
            tmp_path,
            layout,
            f"train.compile={compiled}",
            "train.train_steps=3",
            disturbance=Disturbance(compile_backend="aot_eager"),
            output_dir=str(tmp_path / name),
            recompute_config=recompute,
        )
        found[name] = by_step(tmp_path / name, *names)
    for step, (loss, norm) in found["eager"].items():
        assert found["compiled"][step] == (pytest.approx(loss, abs=1e-5), pytest.approx(norm, rel=1e-5))
