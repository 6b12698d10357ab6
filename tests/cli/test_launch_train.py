"""``meshwright train`` as users start it: refusals before any worker, a run, torchrun, a killed rank, Ctrl-C."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from meshwright.checkpoint.manifest import verify

LIMIT = 300
CONFIG = """
output_dir: run
model: {num_layers: 2, hidden_size: 32, num_heads: 2, num_kv_heads: 2, intermediate_size: 64, vocab_size: 512}
parallel_config: {data_parallel: auto}
train: {seq_length: 32, micro_batch_size: 1, global_batch_size: 4, train_steps: 4}
dataset: {paths: [corpus/c], num_parallel_workers: 0}
checkpoint: {save_checkpoint_steps: 2}
monitor: {log_steps: 1, tensorboard: false}
"""


def environment() -> dict[str, str]:
    ours = ("MASTER_", "TORCHELASTIC_", "MESHWRIGHT_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and k not in ("RANK", "WORLD_SIZE")}
    return {**kept, "OMP_NUM_THREADS": "1"}


def meshwright(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "meshwright", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text").mkdir()
    source = Path(json.__file__).parent
    for path in source.glob("*.py"):
        (folder / "text" / path.name).write_text(path.read_text())
    options = ("--suffix", ".py", "--train-tokenizer", "512", "--output", "c")
    done = meshwright(folder, "data", "prepare", "text", *options)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(tmp_path, corpus) -> Path:
    (tmp_path / "corpus").symlink_to(corpus)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.yaml"], ["missing.yaml"]),
        (["tiny.yaml", "train.seq_length=x", "trian.seed=1"], ["train.seq_length", "trian"]),
        (["tiny.yaml", "dataset.paths=[nowhere]"], ["nowhere"]),
        (["tiny.yaml", "--nproc-per-node", "3"], ["global_batch_size", "3"]),
        (["tiny.yaml", "--nproc-per-node", "0"], ["--nproc-per-node 0: must be 1 or more"]),
        (["tiny.yaml", "--nnodes", "2"], ["--nnodes 2", "--rdzv-endpoint"]),
        (["tiny.yaml", "--rdzv-endpoint", "node0"], ["--rdzv-endpoint node0", "HOST:PORT"]),
    ],
    ids=["no-config", "two-mistakes", "no-data", "ranks", "no-ranks", "no-endpoint", "endpoint"],
)
def test_a_wrong_request_ends_with_2_before_any_worker_starts(folder, arguments, told):
    done = meshwright(folder, "train", *arguments)
    assert done.returncode == 2
    for text in told:
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "run").exists()


def test_b24_c_train_refuses_a_taken_port(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        done = meshwright(folder, "train", "tiny.yaml", "--rdzv-endpoint", endpoint)
    assert done.returncode == 2
    assert f"port {endpoint.partition(':')[2]}" in done.stderr
    assert "--rdzv-endpoint" in done.stderr


def losses(output_dir: Path) -> list[float]:
    records = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    return [record["train/loss"] for record in records if "train/loss" in record]


def test_a_config_trains_the_same_by_its_own_launcher_and_under_torchrun(folder):
    done = meshwright(folder, "train", "tiny.yaml", "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert "[rank 0] step 4/4  loss" in done.stdout
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*torchrun, "-m", "meshwright", "train", "tiny.yaml", "output_dir=again"]
    again = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert again.returncode == 0, again.stderr
    assert len(losses(folder / "run")) == 4
    assert losses(folder / "again") == losses(folder / "run")


def start_long_run(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "meshwright", "train", "tiny.yaml", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*command, "train.train_steps=100000"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "step-00000002" in line:
            break
    return process


def test_a_rank_killed_while_it_trains_is_named_and_the_last_checkpoint_is_whole(folder):
    process = start_long_run(folder)
    ranks = {child.environ()["RANK"]: child for child in psutil.Process(process.pid).children()}
    began = time.monotonic()
    ranks["1"].kill()
    _, err = process.communicate(timeout=LIMIT)
    assert time.monotonic() - began < 60
    assert process.returncode == 1
    assert "first cause: rank 1, step " in err.splitlines()[-2]
    assert "killed by SIGKILL" in err.splitlines()[-2]
    told = next(line for line in err.splitlines() if line.startswith("last complete checkpoint: "))
    assert verify(folder / told.partition(": ")[2]) == []


def test_ctrl_c_ends_training_without_orphans_and_names_the_last_checkpoint(folder):
    process = start_long_run(folder)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "last complete checkpoint: run/checkpoints/step-" in err
    assert psutil.wait_procs(ranks, timeout=10)[1] == []
