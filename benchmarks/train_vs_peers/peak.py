"""The best matrix product that one core does here: FLOP/s of ``a @ b`` for square a, b, by dtype, as JSON."""

import json
import sys
import time

import torch

SIZES = (512, 1024, 2048)


def best_flops(dtype: torch.dtype, seconds: float) -> float:
    best = 0.0
    for size in SIZES:
        a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        stop = time.perf_counter() + seconds / len(SIZES)
        while time.perf_counter() < stop:
            start = time.perf_counter()
            a @ b
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    torch.set_num_threads(1)
    budget = float(sys.argv[1])
    print(json.dumps({"fp32": best_flops(torch.float32, budget), "bf16": best_flops(torch.bfloat16, budget)}))
