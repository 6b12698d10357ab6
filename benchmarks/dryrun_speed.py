"""How long a dry run of one rank takes and how much host memory it needs: 7B to 405B, in full and with --fast.

python benchmarks/dryrun_speed.py [--only NAME ...] [--json FILE]

Each is the command ``meshwright dryrun`` in a process of its own, imports included, with one compute thread. CPU
seconds are what it takes on a core that is idle otherwise; wall seconds depend on what else runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

MIB, GIB = 2**20, 2**30
Config = dict[str, dict[str, Any]]


def config(preset: str, seq_length: int, micro_batch_num: int, **layout: Any) -> Config:
    """A run in mixed precision with micro-batches of one sequence."""
    return {
        "model": {"preset": preset},
        "parallel_config": {**layout, "micro_batch_num": micro_batch_num},
        "train": {"seq_length": seq_length, "micro_batch_size": 1},
        "amp_config": {"amp_level": "O2", "dtype": "bfloat16"},
    }


RUNS: dict[str, tuple[Config, int]] = {
    "7B": (config("llama2-7b", 4096, 4, data_parallel=8, zero_stage=3), 0),
    "13B": (config("llama2-13b", 4096, 8, data_parallel=2, pipeline_stage=4, zero_stage=1), 0),
    "70B": (
        config(
            "llama3-70b",
            8192,
            16,
            data_parallel=16,
            model_parallel=8,
            pipeline_stage=8,
            use_seq_parallel=True,
            zero_stage=1,
        ),
        0,
    ),
    "405B": (
        config(
            "llama3.1-405b",
            8192,
            16,
            data_parallel=8,
            model_parallel=8,
            pipeline_stage=8,
            use_seq_parallel=True,
            zero_stage=1,
        ),
        0,
    ),
}
"""Config and rank by name. The first stage holds most micro-batches and takes longest."""


def measure(written: Config, rank: int, *, fast: bool) -> dict[str, Any]:
    """Run the command once; seconds, peak host memory in bytes, and what it predicted."""
    with tempfile.TemporaryDirectory() as folder:
        path, printed = Path(folder) / "config.yaml", Path(folder) / "out.json"
        path.write_text(yaml.safe_dump(written), encoding="utf-8")
        command = [sys.executable, "-m", "meshwright", "dryrun", str(path), "--rank", str(rank), "--json"]
        started = time.perf_counter()
        with printed.open("w") as out:
            process = subprocess.Popen(
                command + ["--fast"] * fast, stdout=out, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
        found = json.loads(printed.read_text())["ranks"][0]
    return {
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss": usage.ru_maxrss * 1024,
        "estimated": found["estimated"],
        "allocated": found["allocated"],
        "reserved": found["reserved"],
    }


def off(fast: dict[str, Any], full: dict[str, Any]) -> dict[str, float]:
    """Differences of the fast figures from the full ones, per cent."""
    pairs = {"allocated": (fast["allocated"], full["allocated"])}
    pairs |= {kind: (fast["reserved"][kind], size) for kind, size in full["reserved"].items()}
    return {name: 100 * (quick / whole - 1) for name, (quick, whole) in pairs.items()}


def line(name: str, mode: str, row: dict[str, Any], error: str) -> str:
    """One row of the table."""
    figures = f"{row['cpu_s']:.1f} | {row['wall_s']:.1f} | {row['peak_rss'] / MIB:.0f}"
    reserved = " / ".join(f"{size / GIB:.2f}" for size in row["reserved"].values())
    return f"| {name} | {mode} | {figures} | {row['allocated'] / GIB:.2f} | {reserved} | {error} |"


def main() -> int:
    """Run all, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(
        "| model | mode | CPU s | wall s | host MiB | allocated, GiB | reserved native / expandable, GiB"
        " | off the full run, % |\n|---|---|---|---|---|---|---|---|"
    )
    rows = {}
    for name in args.only:
        written, rank = RUNS[name]
        full, fast = (measure(written, rank, fast=choice) for choice in (False, True))
        errors = off(fast, full)
        print(line(name, "full", full, ""))
        mode = "fast, extrapolated" if fast["estimated"] else "fast"
        print(line(name, mode, fast, " / ".join(f"{error:+.2f}" for error in errors.values())), flush=True)
        rows[name] = {"config": written, "rank": rank, "full": full, "fast": fast, "off_pct": errors}
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
