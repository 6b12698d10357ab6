"""Requests that ``meshwright train`` refuses before any worker starts, and what tests of training commands share."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main

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
        (["tiny.yaml", "--nnodes", "2:1"], ["--nnodes 2:1", "MIN:MAX"]),
        (["tiny.yaml", "--max-restarts", "-1"], ["--max-restarts -1: must be 0 or more"]),
        (
            ["tiny.yaml", "--nnodes", "1:2", "--rdzv-endpoint", "127.0.0.1:1025", "parallel_config.model_parallel=2"],
            ["the layout tp2 zero0 does not fit 1 of 2 ranks", "parallel_config.data_parallel", "model_parallel 2"],
        ),
    ],
    ids=[
        "no-config",
        "two-mistakes",
        "no-data",
        "ranks",
        "no-ranks",
        "no-endpoint",
        "endpoint",
        "nodes",
        "restarts",
        "too-few-nodes",
    ],
)
def test_a_wrong_request_ends_with_2_before_any_worker_starts(folder, monkeypatch, capsys, arguments, told):
    refuse(folder, monkeypatch, arguments)
    err = capsys.readouterr().err
    for text in told:
        assert text in err


def test_b24_c_train_refuses_a_taken_port(folder, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refuse(folder, monkeypatch, ["tiny.yaml", "--rdzv-endpoint", f"127.0.0.1:{port}"])
    err = capsys.readouterr().err
    assert f"port {port}" in err
    assert "--rdzv-endpoint" in err


def refuse(folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(folder)
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    assert main(["train", *arguments]) == 2
    assert not (folder / "run").exists()


def losses(output_dir: Path) -> list[float]:
    records = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    return [record["train/loss"] for record in records if "train/loss" in record]
