"""What each rank of ``meshwright bench --calibrate`` runs: ``calibrate_worker RESULT_FILE SECONDS`` under a launcher.

All ranks measure at the same time, as they compute at the same time in training: ranks that share cores or memory
channels are seen to share them. The file is rank 0's.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.launch.failure import set_position
from meshwright.spec.training import ComputeDtype

SHARES = {"products": 0.5, "bandwidth": 0.1, "collectives": 0.4}
"""Of the time budget."""


def main(arguments: Sequence[str]) -> None:
    """Measure, and let rank 0 write what it saw."""
    import torch
    import torch.distributed as dist

    from meshwright.parallel.devices import local_device, local_device_kind
    from meshwright.train.build import init_process_group
    from meshwright.train.worker import quiet_torch

    path, seconds = Path(arguments[0]), float(arguments[1])
    quiet_torch()
    kind = local_device_kind()
    device = local_device(kind, int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    set_position(phase="connect")
    init_process_group(kind)
    found = measure(kind, device, seconds)
    if dist.get_rank() == 0:
        path.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(kind: Any, device: Any, seconds: float) -> dict[str, Any]:
    """Products, memory bandwidth and collectives, as plain values. Called on every rank."""
    import torch.distributed as dist

    from meshwright.diagnose.measure import memory_bandwidth, products
    from meshwright.diagnose.measure_collectives import collective_times
    from meshwright.parallel.devices import device_name, memory_use, supports_bfloat16

    set_position(phase="matrix products")
    half: ComputeDtype = "bfloat16" if supports_bfloat16(kind) else "float16"
    rates = []
    for one in products(kind, device, ("float32", half), seconds * SHARES["products"]):
        say(f"product {one.m} x {one.k} x {one.n} {one.number_format}: {one.flops / 1e12:.4g} TFLOP/s")
        rates.append({**asdict(one), "flops": one.flops})
    dist.barrier()
    set_position(phase="memory bandwidth")
    bandwidth = memory_bandwidth(kind, device, seconds * SHARES["bandwidth"])
    say(f"memory: {bandwidth / 1e9:.4g} GB/s")
    set_position(phase="collectives")
    times = []
    for seen in collective_times(kind, device, seconds * SHARES["collectives"]):
        where = f"{seen.ranks} ranks on {seen.nodes} node{'s' if seen.nodes > 1 else ''}"
        say(f"{seen.collective} {seen.message_bytes / 2**20:g} MiB, {where}: {seen.seconds * 1e3:.4g} ms")
        times.append(asdict(seen))
    return {
        "device": kind.name,
        "driver_name": device_name(kind, device),
        "ranks_per_node": int(os.environ["LOCAL_WORLD_SIZE"]),
        "memory_bytes": memory_use(kind, device).total,
        "products": rates,
        "memory_bandwidth": bandwidth,
        "collectives": times,
    }


def say(text: str) -> None:
    """A line of progress, of one rank only."""
    if os.environ["RANK"] == "0":
        print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
