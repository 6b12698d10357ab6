"""A dry run as text and as JSON."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from meshwright.dryrun.analysis import Peak
from meshwright.dryrun.run import DryRun
from meshwright.dryrun.traffic import Message
from meshwright.dryrun.verdict import Verdict

GIB = 2**30
MODULES_SHOWN = 8
SMALLEST_SHOWN = 0.0005
"""GiB; smaller parts round to nothing."""


def lines(result: DryRun, verdict: Verdict, devices_per_node: int) -> list[str]:
    """The report of one rank."""
    peak = result.memory.peak
    first, last = result.layers[0], result.layers[-1]
    return [
        f"rank {result.rank}, stage {result.at.pipeline} (layers {first}-{last}): {headline(result, verdict)}",
        f"  peak: {_where(peak)}",
        "  at the peak, GiB:   " + _parts(peak.categories),
        *(f"  {phase} peak {_gib(at)}: {_parts(at.categories)}" for phase, at in result.memory.phases.items()),
        "  modules that hold most at the peak: " + _parts(_layers_together(peak.modules), MODULES_SHOWN),
        f"  matrix products and attention: {result.traffic.flops / 1e12:.2f} TFLOP per step",
        *(_message(message, devices_per_node) for message in result.traffic.messages),
        f"  dry run took {result.seconds:.1f} s" + (", extrapolated from small runs" if result.estimated else ""),
    ]


def headline(result: DryRun, verdict: Verdict) -> str:
    """``57.6 GiB allocated, 66.7-71.5 GiB reserved, fits ...``."""
    return f"{_gib(result.memory.peak)} allocated{_reserved(result)}, {verdict.text}"


def as_json(result: DryRun, verdict: Verdict, devices_per_node: int) -> dict[str, Any]:
    """Everything, in bytes."""
    reserved = result.reserved
    return {
        "rank": result.rank,
        "stage": result.at.pipeline,
        "layers": list(result.layers),
        "target": result.target,
        "estimated": result.estimated,
        "allocated": result.allocated,
        "reserved": None if reserved is None else {"native": reserved.native, "expandable": reserved.expandable},
        "fits": verdict.fits,
        "spare": verdict.spare,
        "verdict": verdict.text,
        "before": result.memory.before,
        "peak": _peak_json(result.memory.peak),
        "phases": {phase: _peak_json(peak) for phase, peak in result.memory.phases.items()},
        "flops": result.traffic.flops,
        "collectives": [_message_json(message, devices_per_node) for message in result.traffic.messages],
        "seconds": result.seconds,
    }


def _reserved(result: DryRun) -> str:
    if result.reserved is None:
        return ""
    low, high = sorted((result.reserved.native, result.reserved.expandable))
    about = "about " if result.estimated else ""
    return f", {about}{low / GIB:.1f}-{high / GIB:.1f} GiB reserved"


def _where(peak: Peak) -> str:
    moment = peak.moment
    micro_batch = f", micro-batch {moment.micro_batch}" if moment.micro_batch >= 0 else ""
    again = " (recomputing)" if moment.recomputing else ""
    return f"{moment.phase}{micro_batch}, {moment.module or 'outside the model'}, {moment.operator}{again}"


def _parts(sizes: Mapping[Any, int], most: int | None = None) -> str:
    shown = sorted(sizes.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{name or 'no module'} {size / GIB:.3f}" for name, size in shown if size >= SMALLEST_SHOWN * GIB)


def _layers_together(modules: Mapping[str, int]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, size in modules.items():
        sums[re.sub(r"^(layers\.\d+)\..*", r"\1", name)] += size
    return dict(sums)


def _message(message: Message, devices_per_node: int) -> str:
    nodes = message.nodes(devices_per_node)
    where = "inside a node" if nodes == 1 else f"over {nodes} nodes"
    who = f"with rank {message.ranks[0]}" if len(message.ranks) == 1 else f"{len(message.ranks)} ranks, {where}"
    return f"  {message.kind}: {message.count} x, {message.bytes / GIB:.3f} GiB, {who}"


def _message_json(message: Message, devices_per_node: int) -> dict[str, Any]:
    return {
        "kind": message.kind,
        "ranks": list(message.ranks),
        "nodes": message.nodes(devices_per_node),
        "count": message.count,
        "bytes": message.bytes,
    }


def _peak_json(peak: Peak) -> dict[str, Any]:
    return {
        "bytes": peak.bytes,
        "moment": peak.moment._asdict(),
        "categories": dict(peak.categories),
        "modules": dict(peak.modules),
    }


def _gib(peak: Peak) -> str:
    return f"{peak.bytes / GIB:.2f} GiB"
