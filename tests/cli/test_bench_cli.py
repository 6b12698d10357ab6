"""``meshwright bench --calibrate`` as users start it, and a plan made with what it wrote."""

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshwright.config.hardware import read_hardware

LIMIT = 300
CONFIG = """
model: {num_layers: 2, hidden_size: 128, num_heads: 4, num_kv_heads: 4, intermediate_size: 256, vocab_size: 512}
parallel_config: {data_parallel: auto}
train: {seq_length: 128, micro_batch_size: 1, global_batch_size: 8, train_steps: 4}
dataset: {paths: [corpus/c]}
"""


def meshwright(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    ours = ("MASTER_", "TORCHELASTIC_", "MESHWRIGHT_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and k not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "meshwright", *arguments]
    environment = {**kept, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    folder = tmp_path_factory.mktemp("bench")
    arguments = ("bench", "--calibrate", "--seconds", "2", "--nproc-per-node", "2", "--output", "mine.yaml")
    return folder, meshwright(folder, *arguments)


def test_it_measures_prints_and_writes(bench):
    done = bench[1]
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\[rank 0\] product 256 x 256 x 256 float32: [\d.]+ TFLOP/s$", done.stdout, re.MULTILINE)
    assert "[rank 1] product" not in done.stdout
    assert re.search(r"^memory bandwidth [\d.,]+ GB/s$", done.stdout, re.MULTILINE)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
        assert re.search(rf"^{collective} +2 +1 +16 +[\d.]+ +[\d.]+$", done.stdout, re.MULTILINE), collective
    assert "wrote mine.yaml; next: meshwright plan CONFIG --hardware mine.yaml" in done.stderr
    assert "Warning" not in done.stdout + done.stderr


def test_the_file_describes_this_machine(bench):
    import psutil

    cluster = read_hardware(bench[0] / "mine.yaml", 2)
    total = psutil.virtual_memory().total
    assert cluster.device.family == "cpu"
    assert cluster.devices_per_node == 2
    assert cluster.device.memory_bytes == pytest.approx(total / 2, rel=0.01)
    measured = cluster.calibration
    assert {rate.number_format for rate in measured.matmul} == {"float32", "bfloat16"}
    # A core multiplies somewhere between a microcontroller and a GPU.
    assert all(1e8 < rate.flops < 1e13 for rate in measured.matmul)
    assert cluster.device.peak("float32") == max(r.flops for r in measured.matmul if r.number_format == "float32")
    assert 1e8 < measured.memory_bandwidth < 1e12
    assert len(measured.collectives) == 15
    slow = [one for one in measured.collectives if one.message_bytes == 2**24]
    fast = [one for one in measured.collectives if one.message_bytes == 2**16]
    assert sum(one.seconds for one in slow) > sum(one.seconds for one in fast)


def test_a_plan_uses_the_file(bench):
    folder = bench[0]
    (folder / "tiny.yaml").write_text(CONFIG)
    done = meshwright(folder, "plan", "tiny.yaml", "--devices", "2", "--hardware", "mine.yaml", "--json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    assert planned["question"]["hardware"] == "cpu-measured"
    text = (folder / "mine.yaml").read_text()
    (folder / "slow.yaml").write_text(re.sub(r"tflops: [\d.e-]+\}", "tflops: 1e-05}", text))
    slow = meshwright(folder, "plan", "tiny.yaml", "--devices", "2", "--hardware", "slow.yaml", "--json")
    step = [json.loads(run.stdout)["layouts"][0]["time"]["seconds"] for run in (done, slow)]
    assert step[1] > 10 * step[0] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny.yaml",), "bench tiny.yaml: timing a config on growing numbers of devices is not supported yet"),
        ((), "give --calibrate"),
        (("--calibrate", "--seconds", "0"), "--seconds 0: must be from 1 to 3600"),
        (("--calibrate", "--nproc-per-node", "0"), "--nproc-per-node 0: must be 1 or more"),
        (("--calibrate", "--device", "h1000"), "no device 'h1000' in the catalogue; did you mean h100"),
        (("--calibrate", "--output", "mine.yaml"), "mine.yaml: exists already; --force overwrites it"),
        (("--calibrate", "--output", "no/where.yaml"), "no such folder"),
    ],
)
def test_wrong_requests_are_refused_before_anything_starts(bench, arguments, message):
    done = meshwright(bench[0], "bench", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "starting" not in done.stdout
    assert "Traceback" not in done.stderr


def test_two_nodes_measure_the_network_between_them(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    arguments = ("bench", "--calibrate", "--seconds", "1", "--nproc-per-node", "1", "--nnodes", "2")
    arguments = (*arguments, "--rdzv-endpoint", f"localhost:{port}")
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(meshwright, tmp_path, *arguments, "--output", f"{name}.yaml") for name in "ab"]
        done = [run.result() for run in runs]
    assert [run.returncode for run in done] == [0, 0], done[0].stderr + done[1].stderr
    (written,) = tmp_path.glob("*.yaml")
    measured = read_hardware(written, 2)
    assert {(one.ranks, one.nodes) for one in measured.calibration.collectives} == {(2, 2)}
    assert measured.num_nodes == 2
    assert sum("the node with rank 0 has the result" in run.stderr for run in done) == 1
