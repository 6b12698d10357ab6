"""How long a save keeps training waiting: in the background, blocking, torch.save, and blocking DCP.

python benchmarks/checkpoint_stall.py [--megabytes 400] [--ranks 2] [--saves 5] [--folder DIR] [--json FILE]

Every way saves the same tensors: fp32 weights and two moments, sharded over the ranks as ZeRO-3 shards them. Ours
hashes and syncs every byte; DCP syncs; torch.save does neither, and has each rank write its own file, which no other
layout can read. A step multiplies matrices and reduces over all ranks; one is made right after each save, beside it
where the save is in the background.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

WAYS = ("background", "blocking", "torch.save", "dcp")
PRODUCTS = 100


def body(folder: Path, way: str, megabytes: int, saves: int) -> dict[str, float]:
    """On each rank: medians over the saves, in seconds, but the first one, which makes room in memory."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = max(1, megabytes * 250_000 // 1024 // 12)
    tensors = {
        f"{kind}.{layer}": distribute_tensor(torch.randn(rows, 1024), mesh, [Shard(0)])
        for kind in ("model", "exp_avg", "exp_avg_sq")
        for layer in range(4)
    }
    save, wait = saver(way, folder, tensors)
    matrix = torch.randn(512, 512)

    def step() -> float:
        started = time.perf_counter()
        for _ in range(PRODUCTS):
            matrix @ matrix
        dist.all_reduce(torch.ones(1000))
        return time.perf_counter() - started

    stalls, totals, alone, beside = [], [], [], []
    for number in range(saves + 1):
        alone.append(step())
        dist.barrier()
        started = time.perf_counter()
        save(number)
        dist.barrier()
        stalls.append(time.perf_counter() - started)
        beside.append(step())
        totals.append(wait() or stalls[-1])
        dist.barrier()
    columns = {"stall": stalls, "total": totals, "step": alone, "next_step": beside}
    return {name: statistics.median(values[1:]) for name, values in columns.items()}


def saver(way: str, folder: Path, tensors: Any) -> tuple[Callable[[int], Any], Callable[[], float | None]]:
    """(save step N, wait for what is under way and give its seconds)."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    from meshwright.checkpoint.background import BackgroundSaver
    from meshwright.checkpoint.store import save

    what = {"tensors": tensors, "state": {}, "rank_state": {}, "run_id": "benchmark", "keep": 1}
    if way == "background":
        background = BackgroundSaver(dist.new_group(backend="gloo"), torch.device("cpu"))

        def wait() -> float | None:
            saved = background.wait()
            return saved.seconds if saved else None

        return lambda number: background.save(folder, number, **what), wait
    if way == "blocking":
        return lambda number: save(folder, number, **what), lambda: None
    if way == "dcp":
        return lambda number: dcp.save(tensors, checkpoint_id=folder / "dcp"), lambda: None
    own = {name: tensor.to_local() for name, tensor in tensors.items()}
    file = folder / f"rank{dist.get_rank()}.pt"
    return lambda number: torch.save(own, file), lambda: None


def main() -> None:
    """Run every way, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400, help="of one checkpoint")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=5, help="the median is taken over these")
    parser.add_argument("--folder", type=Path, help="on the file system to measure (default: the temporary one)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from ranks import run_ranks

    results: dict[str, dict[str, float]] = {}
    for way in WAYS:
        folder = Path(tempfile.mkdtemp(prefix="stall-", dir=args.folder))
        try:
            of_ranks = run_ranks(body, args.ranks, folder, way, args.megabytes, args.saves, timeout=600)
            results[way] = {name: max(rank[name] for rank in of_ranks) for name in of_ranks[0]}
            results[way]["bytes"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        finally:
            shutil.rmtree(folder)
    blocking = results["blocking"]["stall"]
    print(f"{args.megabytes} MB over {args.ranks} ranks, medians of {args.saves} saves, slowest rank\n")
    print("| way | stall s | of our blocking save | of a step | start to end s | step s | next step s | MB |")
    print("|---|---|---|---|---|---|---|---|")
    for way, row in results.items():
        shares = f"{row['stall'] / blocking:.2f} | {row['stall'] / row['step']:.2f}"
        steps = f"{row['step']:.2f} | {row['next_step']:.2f}"
        print(f"| {way} | {row['stall']:.3f} | {shares} | {row['total']:.2f} | {steps} | {row['bytes'] / 1e6:.0f} |")
    if args.json:
        args.json.write_text(json.dumps({**vars(args), "folder": None, "json": None, "results": results}, indent=2))


if __name__ == "__main__":
    main()
