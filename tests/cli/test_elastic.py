"""Training goes on by itself when ranks or whole nodes die: on the same world, on a smaller one, on a larger one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from test_launch import free_port, wait_for_server
from test_launch_train import CONFIG, LIMIT, corpus, environment, folder

from meshwright.config.elastic import resolve_elastic
from meshwright.config.errors import ConfigErrors
from meshwright.config.load import load_config
from meshwright.config.run import resolve
from ranks import run_ranks

__all__ = ["corpus", "folder"]
LONG = "train.train_steps=100000"
# The loss curve must not depend on the length of the run.
CONSTANT = "lr_schedule.type=constant"


def start(folder: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "meshwright", "train", "tiny.yaml", LONG, CONSTANT, "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_to(process: subprocess.Popen, text: str) -> list[str]:
    """Lines up to the first one with a text in it."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if text in line:
            return lines
    raise AssertionError("\n".join(lines))


def ranks_of(process: subprocess.Popen) -> dict[str, psutil.Process]:
    found = {}
    for child in psutil.Process(process.pid).children():
        found[child.environ()["RANK"]] = child
    return found


def loss_by_step(output_dir: Path) -> dict[int, list[float]]:
    """Every loss of each step: of those that were made again too."""
    found: dict[int, list[float]] = {}
    metrics = output_dir / "metrics.jsonl"
    for line in metrics.read_text().splitlines() if metrics.exists() else ():
        record = json.loads(line)
        if "train/loss" in record:
            found.setdefault(record["step"], []).append(record["train/loss"])
    return found


def wait_for_steps(process: subprocess.Popen, output_dir: Path, steps: int) -> None:
    while len(loss_by_step(output_dir)) < steps:
        assert process.poll() is None
        time.sleep(0.2)


def train_without_a_break(config: Path, steps: int) -> None:
    from meshwright.parallel.devices import KINDS
    from meshwright.train.trainer import Trainer

    overrides = [f"train.train_steps={steps}", CONSTANT, f"output_dir={config.parent / 'straight'}"]
    overrides += [f"dataset.paths=[{config.parent / 'corpus/c'}]", "checkpoint.save_checkpoint_steps=100000"]
    run = resolve(load_config(config, overrides), torch.distributed.get_world_size())
    Trainer(run, kind=KINDS["cpu"], device=torch.device("cpu")).fit()


def test_a_lost_node_makes_the_run_smaller_and_one_that_comes_larger_on_one_loss_curve(folder):
    port = free_port()
    options = ("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{port}")
    first = start(folder, *options)
    wait_for_server(port)
    second = start(folder, *options)
    # Which of the two nodes has rank 0, and prints, is not settled.
    wait_for_steps(first, folder / "run", 3)
    lost = psutil.Process(second.pid).children()
    second.kill()
    for rank in lost:
        rank.kill()
    told = read_to(first, "resumed from run/checkpoints/step-")
    (restart,) = [line for line in told if line.startswith("restart 1 of 3: going on from run/checkpoints/step-")]
    assert restart.endswith("; 2 more are allowed")
    assert any("elastic: 2 of 4 ranks, data_parallel 4 -> 2, micro_batch_num 1 -> 2" in line for line in told)
    third = start(folder, *options)
    told = read_to(first, "going on with 2 nodes from run/checkpoints/step-")
    wait_for_steps(first, folder / "run", len(loss_by_step(folder / "run")) + 3)
    (folder / "run" / "STOP").touch()
    for node in (first, third):
        out, _ = node.communicate(timeout=LIMIT)
        assert node.returncode == 0, out
    losses = loss_by_step(folder / "run")
    steps = max(losses)
    assert list(losses) == list(range(1, steps + 1))
    run_ranks(train_without_a_break, 2, folder / "tiny.yaml", steps)
    straight = loss_by_step(folder / "straight")
    assert max(abs(loss - straight[step][0]) for step, all_of_it in losses.items() for loss in all_of_it) < 1e-4


def test_a_killed_rank_starts_again_from_the_newest_checkpoint_whatever_resume_says(folder):
    process = start(folder, "--max-restarts", "2", "checkpoint.resume=never")
    read_to(process, "step-00000002")
    ranks_of(process)["1"].kill()
    told = read_to(process, "resumed from run/checkpoints/step-")
    restart = next(number for number, line in enumerate(told) if line.startswith("restart 1 of 2: "))
    assert told[restart - 1].startswith("rank 1, step ")
    assert "killed by SIGKILL" in told[restart - 1]
    checkpoint = told[restart].partition("going on from ")[2].partition(";")[0]
    assert f"resumed from {checkpoint} " in told[-1]
    read_to(process, "] step ")
    ranks = list(ranks_of(process).values())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "restarts: 1 of 2, after\n  1. rank 1, step " in out
    assert "last complete checkpoint: run/checkpoints/step-" in out
    assert psutil.wait_procs(ranks, timeout=10)[1] == []


@pytest.mark.parametrize(
    ("overrides", "all_ranks", "told"),
    [
        (["parallel_config.model_parallel=2"], 3, "3 devices are not a multiple of model_parallel 2"),
        (["train.global_batch_size=4"], 3, "4 is not a multiple of micro_batch_size 1 x data_parallel 3"),
    ],
)
def test_fewer_ranks_that_a_layout_does_not_fit_are_refused_by_name(tmp_path, overrides, all_ranks, told):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    with pytest.raises(ConfigErrors, match=told):
        resolve_elastic(load_config(tmp_path / "tiny.yaml", overrides), 4, all_ranks)


def test_fewer_ranks_keep_the_global_batch_also_where_the_config_names_every_number(tmp_path):
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    given = ["parallel_config.data_parallel=2", "parallel_config.model_parallel=2", "parallel_config.micro_batch_num=2"]
    run = resolve_elastic(load_config(tmp_path / "tiny.yaml", given), 4, 2)
    assert (run.layout.data_parallel, run.layout.model_parallel) == (1, 2)
    batch = run.train.batch
    assert (batch.micro_batch_size, batch.micro_batch_num, batch.global_batch_size) == (1, 4, 4)
