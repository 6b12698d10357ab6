"""B-10 as a user sees it: ranks that die of memory end in one report on the screen."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from meshwright.data.indexed_writer import IndexedWriter

CONFIG = """
output_dir: run
model: {num_layers: 2, hidden_size: 64, num_heads: 2, num_kv_heads: 2, intermediate_size: 128, vocab_size: 512}
parallel_config: {data_parallel: 2}
train: {seq_length: 64, micro_batch_size: 4, global_batch_size: 8, train_steps: 4}
dataset: {paths: [corpus]}
monitor: {tensorboard: false, track_memory: true, memory_limit_gib: 0.0035}
"""


def test_b10_two_ranks_without_memory_end_in_one_report(tmp_path):
    with IndexedWriter(tmp_path / "corpus", vocab_size=512) as writer:
        writer.add_document(np.arange(4096) % 512)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    done = train(tmp_path)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith("out of memory: rank ")]
    rank = lines[start].split()[4]
    assert f"rank {rank} of 2, step 1, " in lines[start]
    assert "asked for" in lines[start + 1]
    assert any(line.startswith("  1. micro_batch_size 1: ") for line in lines[start:])
    assert any("recompute everything" in line for line in lines[start:])
    assert lines[-2].startswith(f"first cause: rank {rank}, step 1, phase ")
    assert "tried to allocate" in lines[-2]
    assert (tmp_path / lines[-1].rpartition(": ")[2]).read_text().count("out of memory: rank ") == 1


def train(folder: Path) -> subprocess.CompletedProcess:
    ours = ("MASTER_", "TORCHELASTIC_", "MESHWRIGHT_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and k not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "meshwright", "train", "tiny.yaml"]
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, timeout=300, check=False)
