"""A run that dies of memory says where and what to change; one that lives says how well its peak was predicted."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshwright.checkpoint.errors import CheckpointError, Failure
from meshwright.config.load import load_config
from meshwright.config.run import resolve
from meshwright.diagnose.run_memory import WatchedMemory, watched_memory
from meshwright.launch.failure import Failure as Record
from meshwright.launch.failure import record_failure
from meshwright.parallel.devices import KINDS
from meshwright.train.optimizer import AdamW
from meshwright.train.saving import CheckpointWriter
from meshwright.train.trainer import Trainer
from ranks import run_ranks
from trainer_runs import all_metrics, ranks_of, write_config

SIZES = {"hidden_size": 128, "intermediate_size": 352}
TRACKED = {"track_memory": True, "tensorboard": False}
MIB = 2**20


def before(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Let something happen before a method runs."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def acting(*args: Any, **kwargs: Any) -> Any:
        act()
        return method(*args, **kwargs)

    setattr(owner, name, acting)


def tighten(memory: Any, *_: Any) -> None:
    """Nothing more can be allocated from now on."""
    memory.live.limit = memory.live.bytes


def in_second_step(memory: Any, trainer: Trainer, calls: int) -> Callable[..., None]:
    """A module hook that tightens on its ``calls``-th call of the second step."""
    seen = 0

    def hook(*_: Any) -> None:
        nonlocal seen
        seen += trainer.counters.step == 1
        if seen == calls:
            tighten(memory)

    return hook


def die(config: Path, where: str) -> Record:
    """Train until nothing can be allocated somewhere; what the rank writes down."""
    run = resolve(load_config(config), dist.get_world_size())
    memory = watched_memory(run, KINDS["cpu"], torch.device("cpu"))
    if where == "optimizer step":
        before(AdamW, "_update", lambda: tighten(memory))
    elif where == "checkpoint":
        before(CheckpointWriter, "save", lambda: tighten(memory))
    try:
        with memory.watching():
            trainer = Trainer(run, kind=KINDS["cpu"], device=torch.device("cpu"), memory=memory)
            layer = trainer.state.model.layers["2"]
            if where == "forward":
                layer.register_forward_pre_hook(in_second_step(memory, trainer, 3))
            elif where == "backward":
                layer.register_full_backward_pre_hook(in_second_step(memory, trainer, 3))
            trainer.fit()
    except MemoryError as error:
        return record_failure(error, rank=0)
    raise AssertionError("the run did not die")


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("build model", "rank 0 of 1, build model, in layers."),
        ("forward", "rank 0 of 1, step 2, forward of micro-batch 3 of 4, in layers.2"),
        ("backward", "rank 0 of 1, step 2, backward of micro-batch 3 of 4, in layers.2"),
        ("optimizer step", "rank 0 of 1, step 1, optimizer step, in no module (aten::repeat)"),
        ("checkpoint", "rank 0 of 1, step 6, checkpoint"),
    ],
)
def test_b10_forced_out_of_memory_is_explained(tmp_path, where, told):
    limit = {"memory_limit_gib": 2.5 * MIB / 2**30} if where == "build model" else {}
    config = write_config(tmp_path, "one", model=SIZES, monitor={**TRACKED, **limit})
    (record,) = run_ranks(die, 1, config, where)
    assert record.phase == where
    assert "tried to allocate" in record.error
    assert "out of memory" not in record.error, "the report belongs to the traceback, and is told once"
    report = record.traceback.partition("out of memory: ")[2].splitlines()
    assert report[0].startswith(told)
    assert "asked for" in report[1]
    assert "allocated" in report[1]
    assert any(line.startswith(("  optimizer states ", "  built so far")) for line in report)
    assert any(line.startswith("  biggest part: ") and "the plan has" in line for line in report)
    assert any(line.startswith("  the plan: ") for line in report)


class Broken(torch.nn.Module):
    """A module whose forward, or backward, finds no memory from its ``calls``-th run on."""

    def __init__(self, inner: torch.nn.Module, *, backward: bool, calls: int) -> None:
        super().__init__()
        self.inner, self.backward, self.left = inner, backward, calls

    def forward(self, *args: Any) -> Any:
        self.left -= 1
        if not self.backward and self.left <= 0:
            _no_memory()
        result = self.inner(*args)
        if self.backward and self.left <= 0:
            result.register_hook(_no_memory)
        return result


def _no_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 3.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 5.00 GiB is"
        " free. Of the allocated memory 30.00 GiB is allocated by PyTorch, and 40.00 GiB is reserved by PyTorch but"
        " unallocated."
    )


def die_on_cuda(config: Path) -> tuple[str, int | None, str | None]:
    """Report, step and phase of a run that may not allocate more once it is built."""
    kind, device = KINDS["cuda"], torch.device("cuda", 0)
    torch.accelerator.set_device_index(0)
    run = resolve(load_config(config), 1, device="cuda")
    memory = watched_memory(run, kind, device)
    try:
        with memory.watching():
            trainer = Trainer(run, kind=kind, device=device, memory=memory)
            use = memory.use()
            torch.cuda.set_per_process_memory_fraction((use.reserved + MIB) / use.total, device)
            trainer.fit()
    except torch.OutOfMemoryError as error:
        record = record_failure(error, rank=0)
        return record.traceback.partition("out of memory: rank")[2], record.step, record.phase
    raise AssertionError("the run did not die")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_b10_a_cuda_device_without_memory_is_explained_by_its_allocator(tmp_path):
    sizes = {**SIZES, "vocab_size": 32000}
    config = write_config(tmp_path, "one", model=sizes, train={"seq_length": 2048})
    ((report, step, phase),) = run_ranks(die_on_cuda, 1, config)
    assert (step, phase) == (1, "forward")
    assert "asked for" in report
    assert "everything else" in report


class Died(Exception):
    """Report, step and phase of a rank: raised, so that the others do not wait for it."""


def die_untracked(config: Path, where: str) -> None:
    """As an accelerator would: no tracker, only the error and its call stack."""
    run = resolve(load_config(config), dist.get_world_size())
    memory = WatchedMemory(run, KINDS["cpu"], torch.device("cpu"))
    if where == "optimizer step":
        before(AdamW, "_update", _no_memory)
    try:
        with memory.watching():
            trainer = Trainer(run, kind=KINDS["cpu"], device=torch.device("cpu"), memory=memory)
            layers = trainer.state.model.layers
            last = list(layers)[-1]
            if where in ("forward", "backward"):
                layers[last] = Broken(layers[last], backward=where == "backward", calls=2)
            trainer.fit()
    except RuntimeError as error:
        record = record_failure(error)
        assert record.error.startswith("torch.OutOfMemoryError: CUDA out of memory")
        raise Died(record.traceback.partition("out of memory: rank")[2], record.step, record.phase) from None
    raise AssertionError("the run did not die")


@pytest.mark.parametrize(
    ("layout", "where", "told"),
    [
        ("one", "forward", "forward of micro-batch 2 of 4, in layers."),
        ("one", "backward", "backward of micro-batch 2 of 4"),
        ("one", "optimizer step", "optimizer step"),
        ("pp2", "forward", "forward of micro-batch 2 of 4, in layers."),
        ("pp2", "backward", "backward of micro-batch 2 of 4"),
    ],
)
def test_without_a_tracker_the_call_stack_tells_the_place(tmp_path, layout, where, told):
    config = write_config(tmp_path, layout, model=SIZES, train={"micro_batch_size": 2})
    with pytest.raises(Died) as died:
        run_ranks(die_untracked, ranks_of(layout), config, where)
    report, step, phase = died.value.args
    assert f"of {ranks_of(layout)}, step 1, {told}" in report.splitlines()[0]
    assert (step, phase) == (1, where)
    assert "3.00 MiB asked for; 30.00 GiB allocated, 70.00 GiB reserved" in report
    assert "fragmentation: 40.00 GiB" in report
    assert "expandable_segments:True" in report


def failing_save(config: Path) -> tuple[str, bool]:
    """A save that died of rank 1's memory, as every rank hears of it."""
    run = resolve(load_config(config), dist.get_world_size())
    memory = watched_memory(run, KINDS["cpu"], torch.device("cpu"))
    try:
        with memory.watching():
            raise CheckpointError("saving step 3 failed on rank 1: MemoryError: ", (Failure(1, "MemoryError: "),))
    except CheckpointError as error:
        record = record_failure(error)
        return record.traceback.partition("out of memory: ")[2], record.communication


def test_of_a_save_only_the_rank_without_memory_tells(tmp_path):
    (other, other_lost_a_peer), (own, own_lost_a_peer) = run_ranks(failing_save, 2, write_config(tmp_path, "dp2"))
    assert own.startswith("rank 1 of 2")
    assert not own_lost_a_peer
    assert other == ""
    assert other_lost_a_peer


def train_watched(config: Path) -> None:
    run = resolve(load_config(config), dist.get_world_size())
    memory = watched_memory(run, KINDS["cpu"], torch.device("cpu"))
    with memory.watching():
        Trainer(run, kind=KINDS["cpu"], device=torch.device("cpu"), memory=memory).fit()


@pytest.mark.parametrize("layout", ["pp2", "dp2_zero3"])
def test_predicted_and_measured_peak_are_logged(tmp_path, layout, capsys):
    sizes = {**SIZES, "vocab_size": 2048}
    config = write_config(tmp_path, layout, model=sizes, train={"seq_length": 128, "train_steps": 3}, monitor=TRACKED)
    run_ranks(train_watched, ranks_of(layout), config)
    steps = [line for line in all_metrics(tmp_path / "out") if "train/loss" in line]
    assert len(steps) == 3
    for line in steps:
        error = 100 * (line["memory/predicted_gib"] / line["memory/peak_gib"] - 1)
        assert line["memory/predicted_error_pct"] == pytest.approx(error)
        assert 0 < line["memory/after_step_gib"] < line["memory/peak_gib"]
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "memory: predicted" in line]
    assert f"({steps[1]['memory/predicted_error_pct']:+.1f} %)" in told
    assert told.endswith("over all ranks")
    # gloo's threads may hold on to a message: the rank that needed least is the one that was predicted.
    assert abs(max(float(error) for error in re.findall(r"([+-][\d.]+) ", told))) < 3


def test_b10_memory_after_the_update_stays_flat_from_step_10_to_200(tmp_path):
    config = write_config(
        tmp_path,
        "one",
        model={"num_layers": 1},
        train={"micro_batch_size": 8, "train_steps": 200},
        checkpoint={"save_checkpoint_steps": 100},
        monitor=TRACKED,
    )
    run_ranks(train_watched, 1, config)
    after = {
        int(line["step"]): line["memory/after_step_gib"]
        for line in all_metrics(tmp_path / "out")
        if "train/loss" in line
    }
    assert len(after) == 200
    sizes = [after[step] * 2**30 for step in range(10, 201)]
    assert max(sizes) - min(sizes) <= MIB
