"""What `monitor.track_memory` measures, and what it costs.

python benchmarks/tracked_memory.py            # rows of real steps: predicted against tracked peak of every rank
python benchmarks/tracked_memory.py --cost     # CPU seconds of a step, plain and tracked, one thread
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "distributed")]

import memory_rows as rows  # noqa: E402
from ranks import run_ranks  # noqa: E402

TINY = replace(rows.BALANCED, hidden_size=32, num_heads=4, head_dim=8, intermediate_size=64, vocab_size=128)
LARGE = replace(rows.WIDE, num_layers=6, vocab_size=8192)
COSTS = (
    (rows.row("0.04 million parameters", TINY, seq_length=16, micro_batch_size=8), 30),
    (rows.row("4 million", rows.BALANCED), 8),
    (rows.row("26 million", LARGE, seq_length=512, micro_batch_size=2), 4),
)


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cost", action="store_true", help="time a step instead")
    if parser.parse_args().cost:
        for row, steps in COSTS:
            ((plain, _),) = run_ranks(measure, 1, row, steps, tracked=False)
            ((tracked, _),) = run_ranks(measure, 1, row, steps, tracked=True)
            print(f"{row.name:28s} {plain:.4f} s, tracked {tracked:.4f} s, {100 * (tracked / plain - 1):+.0f} %")
        return
    errors = []
    for row in rows.ROWS:
        found = run_ranks(measure, row.layout.world_size, row, 2, tracked=True)
        # gloo's threads may hold on to a message: of the ranks of a stage, the one that needed least counts.
        stages = [row.layout.coordinates(rank).pipeline for rank in range(len(found))]
        worst = [
            max(error for at, (_, error) in zip(stages, found, strict=True) if at == stage) for stage in set(stages)
        ]
        errors += map(abs, worst)
        print(f"{row.name:62s} {' '.join(f'{error:+6.2f} %' for error in worst)}", flush=True)
    print(f"{len(errors)} stages: mean {sum(errors) / len(errors):.2f} %, largest {max(errors):.2f} %")


def measure(row: Any, steps: int, *, tracked: bool) -> tuple[float, float]:
    """CPU seconds of the fastest step, and the error of the predicted peak in per cent (0 where it is not tracked)."""
    import torch

    from meshwright.diagnose.run_memory import error_pct
    from meshwright.diagnose.tracked_memory import TrackedMemory
    from meshwright.dryrun.execute import rank_batch, rank_state
    from meshwright.parallel.devices import KINDS
    from meshwright.train.memory import RunMemory
    from meshwright.train.step import train_step

    monitor = SimpleNamespace(memory_limit_gib=None)
    run: Any = SimpleNamespace(
        model=row.spec, layout=row.layout, train=row.train, config=SimpleNamespace(monitor=monitor)
    )
    memory = (TrackedMemory if tracked else RunMemory)(run, KINDS["cpu"], torch.device("cpu"))
    with memory.watching():
        state, batch = rank_state(row.spec, row.layout, row.train), rank_batch(row.train)
        memory.follow(state)
        seconds = [_timed(lambda: (memory.begin_step(batch), train_step(state, batch, 1e-3))) for _ in range(steps)]
        error = error_pct(memory.expected.stage.allocated, memory.use().peak_allocated) if tracked else 0.0
    return min(seconds), error


def _timed(step: Any) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


if __name__ == "__main__":
    main()
