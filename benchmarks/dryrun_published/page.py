"""Figures of the comparison as lines and as a page."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from benchmarks.dryrun_published.rows import LIMIT_PCT, ROWS

GIB = 2**30
WIDTH = 118
Step = Mapping[str, Any]

INTRODUCTION = """# Dry run against published peaks

Written by `python -m benchmarks.dryrun_published --page docs/dryrun-published.md`; the configs are beside the script.

The source is torchtitan's table of December 2024, `benchmarks/llama3_h100_202412_torchtitan.md`: H100 of 96 GB, torch
of 2024-12-23, torchtitan 9dec370. Its memory is the peak of `reserved_bytes.all` over all devices, with expandable
segments. It is another trainer than ours, so the figures are not to be the same. Each row is the nearest run of
Meshwright as `meshwright dryrun` reports it, then the same with what torchtitan did otherwise put in its place, one
difference after the other. A difference exchanges one function for the duration of the dry run: its bytes come from
the same tape and the same model of the allocator, none is a factor fitted to the result.
"""

READING = """## Reading it
- The two eager rows are like for like: the same operators run one by one. The others were compiled and used float8
  products, which the dry run does not know; their error is that of taking one for the other.
- What is left of the eager rows, about 3 GiB too little, is not explained by bytes of tensors. A likely part is
  torch of 2024 itself: its process group told the allocator of tensors in use on its stream (`record_stream`), which
  delays their reuse until the device has come so far, and for which a replay without time has no answer.
- The fp32 loss is most of the way wherever the last layers are on the same device. The optimizer adds nothing: its
  temporary exists when the activations are gone.
- Live tensors alone, without a model of the allocator, fall short of these figures by an eighth to a fifth.
- Layers and micro-batches of the 405B run are not published: they are torchtitan's defaults at that commit. Its first
  stage is shown, which holds the embedding. Of our run the second needs more, 65.7 GiB allocated: 16 layers, not 15.
"""


def line(name: str, steps: Sequence[Step], published: float) -> str:
    """One step of one row, for the terminal."""
    step = steps[-1]
    reserved = step["reserved"]
    what = f"with {step['applied']}" if step["applied"] else "ours"
    sizes = f"{_gib(step['allocated'])} allocated, {_gib(reserved['native'])} native, {_gib(reserved['expandable'])}"
    return f"{name}: {what}: {sizes} expandable; published {published} ({_error(step, published):+.1f} %)"


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The page; GiB everywhere."""
    parts = [INTRODUCTION, "## Result\n", *_table(results), "", "## From our run to theirs\n"]
    parts += ["Reserved memory with expandable segments, GiB; `+` is what a difference adds.\n", *_steps(results), ""]
    parts += ["Differences:\n", *_texts(), "", "## What the peak is made of\n"]
    parts += ["Live tensors, GiB, of our run and of the run with all differences.\n", *_categories(results), ""]
    return "\n".join([*parts, READING])


def _table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| Llama 3.1 | published run | published | ours: allocated | native | expandable | with differences: allocated"
        " | native | expandable | error | limit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        first, last = result["steps"][0], result["steps"][-1]
        cells = [result["name"], result["build"], f"{result['published_gib']}", *_sizes(first), *_sizes(last)]
        error = f"{_error(last, result['published_gib']):+.1f} %"
        lines.append("| " + " | ".join([*cells, error, f"{LIMIT_PCT[result['build']]:.0f} %"]) + " |")
    return lines


def _sizes(step: Step) -> list[str]:
    return [_gib(step["allocated"]), _gib(step["reserved"]["native"]), _gib(step["reserved"]["expandable"])]


def _steps(results: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(difference.name for row in ROWS for difference in row.differences))
    lines = ["| Llama 3.1 | ours | " + " | ".join(names) + " | sum | published |", "|---" * (len(names) + 4) + "|"]
    for result in results:
        sizes = [step["reserved"]["expandable"] for step in result["steps"]]
        added = {
            step["applied"]: f"{(after - before) / GIB:+.1f}"
            for step, before, after in zip(result["steps"][1:], sizes[:-1], sizes[1:], strict=True)
        }
        cells = [_gib(sizes[0]), *(added.get(name, "") for name in names), _gib(sizes[-1]), result["published_gib"]]
        lines.append(f"| {result['name']} | " + " | ".join(map(str, cells)) + " |")
    return lines


def _texts() -> list[str]:
    known = {difference.name: difference.text for row in ROWS for difference in row.differences}
    texts = [f"- {name}: torchtitan {text}." for name, text in known.items()]
    return [fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for text in texts]


def _categories(results: Sequence[Mapping[str, Any]]) -> list[str]:
    runs = [(result, result["steps"][at]) for result in results for at in (0, -1)]
    parts = [step["peak"]["categories"] for _, step in runs]
    names = sorted(
        {name for part in parts for name in part}, key=lambda name: -max(part.get(name, 0) for part in parts)
    )
    shown = [name for name in names if max(part.get(name, 0) for part in parts) >= 0.05 * GIB]
    lines = ["| Llama 3.1 | run | peak in | " + " | ".join(shown) + " |", "|---" * (len(shown) + 3) + "|"]
    for (result, step), part in zip(runs, parts, strict=True):
        moment = step["peak"]["moment"]
        where = " ".join(filter(None, (moment["phase"], moment["module"])))
        kind = "with differences" if step["applied"] else "ours"
        cells = [result["name"], kind, where, *(_gib(part.get(name, 0)) for name in shown)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _error(step: Step, published: float) -> float:
    return 100 * (step["reserved"]["expandable"] / GIB / published - 1)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"
