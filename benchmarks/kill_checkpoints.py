"""kill -9 at random moments of runs that save all the time: does any kill lose a checkpoint (B-18)?

python benchmarks/kill_checkpoints.py [--count 1000] [--ranks 3] [--seed 0] [--folder DIR] [--json FILE]

Ranks save one step after the other, blocking or beside training by turns; after a random time one of them or all are
killed from outside, and new ones go on from the newest complete checkpoint in the same folder, as a run does that is
started again. After every kill the newest complete checkpoint is found, every byte of it is verified, and its values
are loaded and compared. Lost is a checkpoint whose save had returned on some rank, or that an earlier start went on
from.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

RUN_ID, KEEP, PATIENCE = "run", 2, 120
TENSORS, ROWS, COLUMNS = 6, 96, 512
LONGEST = 0.6
"""Seconds between the first save of the ranks and the latest kill: some saves."""


def values(tensor: int, step: int) -> Any:
    """What a tensor holds at a step."""
    import torch

    return torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + 1000 * tensor + step


def require(path: Path, step: int, ranks: int) -> None:
    """Raises AssertionError where a checkpoint is not exactly the one of ``step``."""
    import torch

    from meshwright.checkpoint import store

    assert store.verify(path) == [], path
    whole = {f"w{number}": torch.zeros(ROWS, COLUMNS) for number in range(TENSORS)}
    store.load_tensors(path, whole, no_dist=True)
    assert all(whole[f"w{number}"].equal(values(number, step)) for number in range(TENSORS)), path
    assert store.read_state(path) == {"step": step}, path
    assert [store.load_rank_state(path, rank) for rank in range(ranks)] == [{"rank": rank} for rank in range(ranks)]


def body(root: Path, notes: Path, beside: bool) -> None:
    """On each rank: go on from the newest checkpoint, and save until killed. Notes tell what was begun and done."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from meshwright.checkpoint import store
    from meshwright.checkpoint.background import BackgroundSaver

    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    background = BackgroundSaver(dist.new_group(backend="gloo"), torch.device("cpu")) if beside else None
    placements = [Replicate(), *[Shard(0)] * (TENSORS - 1)]
    file = os.open(notes / str(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    found = store.find_latest(root, RUN_ID)
    step = found.step or 0
    dist.barrier()
    os.write(file, f"pid {os.getpid()}\n".encode())
    while True:
        step += 1
        tensors = {
            # Without a source every rank cuts its own copy: only saves talk to other ranks.
            f"w{number}": distribute_tensor(values(number, step), mesh, [placement], src_data_rank=None)
            for number, placement in enumerate(placements)
        }
        what = {"tensors": tensors, "state": {"step": step}, "rank_state": {"rank": rank}, "run_id": RUN_ID}
        os.write(file, f"begin {step}\n".encode())
        if background is None:
            store.save(root, step, **what, keep=KEEP)
            os.write(file, f"end {step}\n".encode())
        elif before := background.save(root, step, **what, keep=KEEP):
            os.write(file, f"end {before.step}\n".encode())


@dataclass(frozen=True)
class Notes:
    """What the ranks of one start had noted when they were killed."""

    pids: dict[int, int]
    begun: int
    ended: int

    @classmethod
    def read(cls, folder: Path) -> "Notes":
        """Zero where nothing was begun or ended."""
        pids, steps = {}, {"begin": [0], "end": [0]}
        for path in folder.iterdir():
            for line in path.read_text().splitlines():
                word, number = line.split()
                if word == "pid":
                    pids[int(path.name)] = int(number)
                else:
                    steps[word].append(int(number))
        return cls(pids, max(steps["begin"]), max(steps["end"]))


def kill_once(root: Path, ranks: int, beside: bool, everybody: bool, chance: random.Random) -> Notes:
    """Start ranks, kill them at a random moment after their first save began, and tell what they had noted."""
    from ranks import run_ranks

    notes = Path(tempfile.mkdtemp(prefix="notes-"))
    errors: list[BaseException] = []

    def start() -> None:
        try:
            run_ranks(body, ranks, root, notes, beside, timeout=PATIENCE)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    while thread.is_alive() and (len((now := Notes.read(notes)).pids) < ranks or not now.begun):
        time.sleep(0.002)
    time.sleep(chance.uniform(0, LONGEST))
    pids = Notes.read(notes).pids
    for rank in range(ranks) if everybody else [chance.randrange(ranks)]:
        if rank in pids and thread.is_alive():
            os.kill(pids[rank], signal.SIGKILL)
    thread.join()
    told = Notes.read(notes)
    shutil.rmtree(notes)
    (error,) = errors
    if "SIGKILL" not in str(error) and type(error).__name__ != "PeerLost":
        raise error
    return told


def main() -> None:
    """Kill, check, print the table, write JSON; ends with 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="on the file system to try (default: the temporary one)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from meshwright.checkpoint import store

    chance, root = random.Random(args.seed), Path(tempfile.mkdtemp(prefix="kills-", dir=args.folder))
    counts: dict[tuple[str, str], Counter[str]] = {}
    least, losses = 0, []
    for number in range(args.count):
        beside, everybody = bool(number % 2), chance.random() < 0.5
        told = kill_once(root, args.ranks, beside, everybody, chance)
        least = max(least, told.ended)
        found = store.find_latest(root, RUN_ID)
        row = counts.setdefault(("beside training" if beside else "blocking", "all" if everybody else "one"), Counter())
        row["kills"] += 1
        inside = told.begun > told.ended
        row["inside a save"] += inside
        row["newest left: that save"] += inside and found.step == told.begun
        row["passed over, with reason"] += len(found.skipped)
        try:
            assert found.path is not None or least == 0, found
            assert (found.step or 0) >= least, (found, least)
            if found.path is not None:
                require(found.path, found.step or 0, args.ranks)
        except Exception as error:
            losses.append(f"kill {number + 1}: {error!r}")
        least = max(least, found.step or 0)
        if (number + 1) % 100 == 0:
            print(f"{number + 1} kills, {len(losses)} losses", file=sys.stderr, flush=True)
    columns = ["kills", "inside a save", "newest left: that save", "passed over, with reason"]
    print(f"| saving | ranks killed | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for (way, who), row in sorted(counts.items()):
        print(f"| {way} | {who} of {args.ranks} | {' | '.join(str(row[name]) for name in columns)} |")
    total = sum(counts.values(), Counter())
    print(
        f"\n{total['kills']} kills, {total['inside a save']} inside a save, {len(losses)} losses; {least} saves stood"
    )
    print("\n".join(losses))
    if args.json:
        rows = [{"saving": way, "killed": who, **row} for (way, who), row in sorted(counts.items())]
        args.json.write_text(
            json.dumps({"ranks": args.ranks, "seed": args.seed, "rows": rows, "losses": losses}, indent=2)
        )
    if losses:
        sys.exit(f"the folder is kept: {root}")
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
