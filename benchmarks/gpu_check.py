"""Predicted against measured memory, and the speed of a 1B model, on one GPU.

    python -m benchmarks.gpu_check [--json FILE] [--seconds 340]

Six small configs are dry-run, then trained for a few steps, each in a process of its own with a world of one; the peaks
of the allocator are put beside the predicted ones. A Llama 3.2 1B in bf16 with the fused optimizer is timed with and
without ``train.compile``. Without a GPU it says so and exits 0; 1 means that a run failed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.config.load import load_config
from meshwright.config.run import Run, resolve
from meshwright.spec.flops import flops_per_token

if TYPE_CHECKING:
    from meshwright.dryrun.run import DryRun

GIB = 2**30
MEMORY_STEPS, SPEED_STEPS, WARM_UP = 3, 13, 3
LARGEST_SHARE = 0.92
SMALL = """
model:
  {num_layers: 12, hidden_size: 1024, num_heads: 16, num_kv_heads: 4, intermediate_size: 2816, vocab_size: 32768}
train: {seq_length: 2048, micro_batch_size: 4}
amp_config: {amp_level: O2}
"""
LARGE = """
model: {preset: llama3.2-1b}
train: {seq_length: 4096}
amp_config: {amp_level: O2}
"""
CASES: dict[str, tuple[str, ...]] = {
    "nothing recomputed": (),
    "four micro-batches of one": ("train.micro_batch_size=1", "parallel_config.micro_batch_num=4"),
    "elementwise recomputed": ("recompute_config.select_recompute=[elementwise]",),
    "all but attention recomputed": ("recompute_config.select_recompute=[elementwise,matmul]",),
    "layers recomputed whole": ("recompute_config.recompute=true",),
    "loss in chunks": ("train.micro_batch_size=8", "train.loss_chunk_tokens=1024", "recompute_config.recompute=true"),
}


class RunFailed(Exception):
    """A training process ended without figures."""


@dataclass(frozen=True)
class Bench:
    """Where and how long to measure.

    Attributes:
        kind: name of the device kind, cuda or cpu.
        words: overrides of every config.
        deadline: of `time.monotonic`, for all of it.
    """

    kind: str
    folder: Path
    deadline: float
    words: tuple[str, ...] = ()

    def run(self, text: str, words: Sequence[str]) -> tuple[Path, list[str], Run]:
        """A config as a file, its overrides, and what they resolve to on one device."""
        path = self.folder / "config.yaml"
        path.write_text(text, encoding="utf-8")
        asked = [*words, *self.words]
        return path, asked, resolve(load_config(path, asked), 1)

    def dry_run(self, run: Run, *, fast: bool = False) -> "DryRun":
        """What is predicted of a run on this kind of device."""
        from meshwright.diagnose.run_memory import device_family
        from meshwright.dryrun.run import dry_run
        from meshwright.parallel.devices import KINDS, local_device

        kind = KINDS[self.kind]
        family = device_family(kind, local_device(kind, 0))
        return dry_run(run, target_name="cpu" if self.kind == "cpu" else "cuda", family=family, fast=fast)

    def measured(self, path: Path, words: Sequence[str], steps: int) -> dict[str, Any]:
        """Peaks and step times of a real run. Raises RunFailed."""
        command = [sys.executable, __file__, "--measure", str(path), self.kind, str(steps), *words]
        left = max(self.deadline - time.monotonic(), 1)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            raise RunFailed("time is up") from None
        if done.returncode != 0:
            raise RunFailed(done.stderr.strip().splitlines()[-1])
        return json.loads(done.stdout.splitlines()[-1])


def memory_row(bench: Bench, name: str) -> dict[str, Any]:
    """Predicted and measured peaks of one case, bytes."""
    path, words, run = bench.run(SMALL, CASES[name])
    found = bench.dry_run(run)
    predicted = {"allocated": found.allocated, "reserved": found.reserved.native if found.reserved else None}
    return {"case": name, "predicted": predicted, "measured": bench.measured(path, words, MEMORY_STEPS)}


def speed_row(bench: Bench, *, compiled: bool, peak_flops: float | None, device_bytes: int) -> dict[str, Any]:
    """Step time and MFU at the largest micro-batch that a dry run says fits."""
    words = [f"train.compile={str(compiled).lower()}"]
    for size in (8, 4, 2, 1):
        path, asked, run = bench.run(LARGE, [f"train.micro_batch_size={size}"])
        found = bench.dry_run(run, fast=True)
        if found.needed <= LARGEST_SHARE * device_bytes:
            break
    else:
        raise RunFailed(f"needs {found.needed / GIB:.1f} GiB of {device_bytes / GIB:.1f} GiB")
    seconds = statistics.median(bench.measured(path, [*asked, *words], SPEED_STEPS)["seconds"][WARM_UP:])
    flops = flops_per_token(run.model, run.train.seq_length, embedding=False, causal=True) * run.train.tokens_per_step
    return {
        "compile": compiled,
        "micro_batch_size": size,
        "seconds": seconds,
        "tokens_per_second": run.train.tokens_per_step / seconds,
        "flops_per_second": flops / seconds,
        "mfu": None if peak_flops is None else flops / seconds / peak_flops,
    }


def measure(path: Path, kind_name: str, steps: int, words: Sequence[str]) -> dict[str, Any]:
    """Train on random tokens in a world of one; peaks in bytes, seconds of each step."""
    import torch
    import torch.distributed as dist

    from meshwright.data.loader import Batch
    from meshwright.diagnose.run_memory import watched_memory
    from meshwright.parallel.devices import KINDS, local_device
    from meshwright.parallel.precision import formats
    from meshwright.train.build import build_state, init_process_group
    from meshwright.train.step import train_step

    kind = KINDS[kind_name]
    device = local_device(kind, 0)
    tracked = ["monitor.track_memory=true"] if not kind.memory_stats else []
    run = resolve(load_config(path, [*words, *tracked]), 1)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
    init_process_group(kind)
    memory = watched_memory(run, kind, device)
    seconds = []
    with memory.watching():
        chosen = formats(run.train.precision, kind)
        state = build_state(run.model, run.layout, run.train, kind=kind, device=device, chosen=chosen)
        memory.follow(state)
        ids = torch.randint(run.model.vocab_size, (run.train.batch.global_batch_size, run.train.seq_length))
        batch = Batch(tokens=ids.to(device), labels=ids.to(device, copy=True))
        del ids
        for _ in range(steps):
            started = time.perf_counter()
            memory.begin_step(batch)
            # The host waits for the device here; nothing of the step outlives it.
            train_step(state, batch, 1e-4).loss.item()
            seconds.append(time.perf_counter() - started)
        use = memory.use()
    dist.destroy_process_group()
    reserved = use.peak_reserved if kind.memory_stats else None
    return {"allocated": use.peak_allocated, "reserved": reserved, "seconds": seconds}


def memory_line(row: dict[str, Any]) -> str:
    """``name: allocated 1.234 GiB predicted, 1.240 measured (-0.5 %); ...``."""
    parts = []
    for what in ("allocated", "reserved"):
        predicted, measured = row["predicted"][what], row["measured"][what]
        if predicted is not None and measured is not None:
            error = 100 * (predicted / measured - 1)
            parts.append(f"{what} {predicted / GIB:.3f} GiB predicted, {measured / GIB:.3f} measured ({error:+.2f} %)")
    return f"{row['case']}: " + "; ".join(parts)


def speed_line(row: dict[str, Any]) -> str:
    """``1B, compiled, micro-batch 4: 312 ms, ... TFLOP/s, MFU 45.1 %``."""
    mode = "compiled" if row["compile"] else "eager"
    share = "MFU unknown: the catalogue has no such device" if row["mfu"] is None else f"MFU {100 * row['mfu']:.1f} %"
    return (
        f"1B, {mode}, micro-batch {row['micro_batch_size']}: {row['seconds'] * 1e3:.0f} ms a step,"
        f" {row['tokens_per_second']:,.0f} tokens/s, {row['flops_per_second'] / 1e12:.0f} TFLOP/s, {share}"
    )


def main() -> int:
    """Measure, or say why not."""
    if sys.argv[1:2] == ["--measure"]:
        path, kind, steps, *words = sys.argv[2:]
        print(json.dumps(measure(Path(path), kind, int(steps), words)))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the figures, bytes and seconds")
    parser.add_argument("--seconds", type=float, default=340, metavar="S", help="time for all of it (default: 340)")
    args = parser.parse_args()
    import torch

    from meshwright.train.worker import quiet_torch

    if not torch.cuda.is_available():
        print("gpu_check: skipped: torch sees no CUDA device here")
        return 0
    quiet_torch()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench("cuda", Path(folder), time.monotonic() + args.seconds)
        report = checked(bench, torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if report["failed"] else 0


def checked(bench: Bench, device: str, device_bytes: int, *, speed: bool = True) -> dict[str, Any]:
    """All rows, printed as they are done; ``failed`` says by case why it has none."""
    from meshwright.spec.catalogue import peak_flops

    report: dict[str, Any] = {"device": device, "memory": [], "speed": [], "failed": {}}
    print(f"{device}, {device_bytes / GIB:.1f} GiB")
    for name in CASES:
        try:
            report["memory"].append(memory_row(bench, name))
            print(memory_line(report["memory"][-1]), flush=True)
        except RunFailed as error:
            report["failed"][name] = str(error)
    for compiled in (False, True) if speed else ():
        try:
            row = speed_row(bench, compiled=compiled, peak_flops=peak_flops(device), device_bytes=device_bytes)
            report["speed"].append(row)
            print(speed_line(row), flush=True)
        except RunFailed as error:
            report["failed"]["1B, " + ("compiled" if compiled else "eager")] = str(error)
    for name, reason in report["failed"].items():
        print(f"{name}: failed: {reason}")
    return report


if __name__ == "__main__":
    raise SystemExit(main())
