"""From step times to the table: medians, spreads, ratios to the best peer, shares of the core's peak."""

from statistics import median, quantiles
from typing import Any

from shapes import Shape
from tools import Variant


def summarise(
    shape: Shape,
    micro_batch_size: int,
    results: dict[Variant, list[dict[str, Any]]],
    peak: dict[str, float],
    warmup: int,
) -> list[dict[str, Any]]:
    """One row per variant; ``results`` has one entry per round. The first ``warmup`` steps of each are left out.

    ``tokens_per_s`` is the median over all timed steps, ``spread`` its quartiles, ``ratio`` the quotient to the
    best peer of the same class (Meshwright rows only), with the range it takes over the rounds.
    """
    tokens = micro_batch_size * shape.seq_length
    speeds = {v: [[tokens / s for s in r["step_seconds"][warmup:]] for r in rounds] for v, rounds in results.items()}
    return [_row(variant, speeds, shape, results[variant], peak) for variant in results]


def _row(
    variant: Variant,
    speeds: dict[Variant, list[list[float]]],
    shape: Shape,
    rounds: list[dict[str, Any]],
    peak: dict[str, float],
) -> dict[str, Any]:
    steps = [speed for one_round in speeds[variant] for speed in one_round]
    speed = median(steps)
    low, _, high = quantiles(steps, n=4) if len(steps) > 1 else (speed, speed, speed)
    row = {
        "class": variant.kind,
        "name": variant.name,
        "tokens_per_s": speed,
        "spread": [low, high],
        "timed_steps": len(steps),
        "peak_share": speed * shape.flops_per_token() / peak["fp32" if variant.precision == "fp32" else "bf16"],
        "parameters": rounds[0]["parameters"],
        "weights": rounds[0]["weights"],
        "losses": [rounds[0]["losses"][0], rounds[0]["losses"][-1]],
    }
    peers = [v for v in speeds if v.kind == variant.kind and v.tool != "meshwright"]
    if variant.tool == "meshwright" and peers:
        best = max(peers, key=lambda v: median([s for one_round in speeds[v] for s in one_round]))
        pairs = zip(speeds[variant], speeds[best], strict=True)
        by_round = [median(ours) / median(theirs) for ours, theirs in pairs]
        row |= {"ratio": median(by_round), "ratio_range": [min(by_round), max(by_round)], "best_peer": best.name}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| class | tool | tokens/s (quartiles) | share of peak | ratio to best peer (rounds) | loss |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["spread"]
        ratio = ""
        if "ratio" in row:
            worst, best = row["ratio_range"]
            ratio = f"**{row['ratio']:.2f}** ({worst:.2f}-{best:.2f}) of {row['best_peer']}"
        speed = f"{row['tokens_per_s']:.0f} ({low:.0f}-{high:.0f})"
        loss = f"{row['losses'][0]:.2f} -> {row['losses'][1]:.2f}"
        lines.append(f"| {row['class']} | {row['name']} | {speed} | {row['peak_share']:.0%} | {ratio} | {loss} |")
    return "\n".join(lines)
