"""Check, plan and dry-run every config and recipe that is shipped, and write docs/recipes.md.

    python -m benchmarks.shipped_configs [--only TEXT] [--fast] [--json FILE] [--page docs/recipes.md]

One rank of each pipeline stage is run; the worst is reported beside what the planner predicts for that stage. Exit code
1: one does not fit, or is not a legal config.
"""

import argparse
import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.cli import main as meshwright
from meshwright.config.hardware import hardware_cluster
from meshwright.config.load import load_config
from meshwright.config.run import Asked, resolve
from meshwright.plan.engines import engine
from meshwright.plan.from_run import job_of_run, question_of
from meshwright.plan.search import predict, search

ROOT = Path(__file__).parents[1]
RECIPES = "src/meshwright/recipes"
GIB = 2**30
ENGINE = "meshwright"
INTRODUCTION = """# Recipes

Two kinds of configs come with Meshwright: starters, which `meshwright config init NAME` writes as one file to change
(`meshwright config list`), and the examples in `configs/`, which inherit what they share from `configs/base/`. All of
them train; paths of data are placeholders for your own, made by `meshwright data prepare`.

Layouts were chosen with `meshwright plan`; the first lines of a file say so, and for which devices. Where an example
shows something else (a split in all dimensions, groups of shards), the last columns have what the planner would take.
Models of experts are not supported by `meshwright train` yet, so there is no recipe of that kind.

Written by `python -m benchmarks.shipped_configs --page docs/recipes.md`: every file is checked, planned and dry-run,
one rank of each pipeline stage; the worst stage is shown. Memory is in GiB per device: live tensors as the dry run and
as the plan has them, and what the caching allocator holds without and with expandable segments. Step times are
predictions of the planner; nothing here was measured on these devices. Each runs with
`meshwright dryrun FILE --world-size DEVICES --hardware HARDWARE --all-stages`.

"""
EXTRAPOLATED = """This table was written with `--fast`: dry runs are extrapolated from small ones, reserved memory is an
estimate.

"""


@dataclass(frozen=True)
class Shipped:
    """A file and the machine that it is meant for."""

    file: str
    devices: int
    hardware: str = "h100"

    @property
    def name(self) -> str:
        """As users call it: a starter by its name, another config by its file."""
        return self.file.removeprefix(f"{RECIPES}/").removesuffix(".yaml") if RECIPES in self.file else self.file


SHIPPED = (
    Shipped(f"{RECIPES}/quickstart.yaml", 4, "cpu"),
    Shipped("configs/llama-124m-cpu.yaml", 1, "cpu"),
    Shipped(f"{RECIPES}/llama-124m.yaml", 8),
    Shipped("configs/llama3.2-1b.yaml", 1),
    Shipped("configs/llama2-7b.yaml", 8),
    Shipped("configs/llama3.1-8b.yaml", 8),
    Shipped(f"{RECIPES}/llama3-8b.yaml", 8),
    Shipped("configs/qwen3-8b.yaml", 16),
    Shipped("configs/llama2-13b.yaml", 8),
    Shipped("configs/llama2-13b-long.yaml", 8),
    Shipped(f"{RECIPES}/llama2-13b.yaml", 8),
    Shipped("configs/llama3-70b.yaml", 64),
    Shipped("configs/llama3-70b.yaml", 256),
    Shipped(f"{RECIPES}/llama3-70b-64gpu.yaml", 64),
    Shipped(f"{RECIPES}/llama3-70b-256gpu.yaml", 256),
    Shipped("configs/llama3.1-405b.yaml", 512),
)


def main() -> int:
    """Go through all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shipped_configs", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="files whose name has it")
    parser.add_argument("--fast", action="store_true", help="extrapolate from small dry runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the figures, in bytes and seconds")
    parser.add_argument("--page", type=Path, metavar="FILE", help="Markdown page to write")
    args = parser.parse_args()
    rows = []
    for shipped in SHIPPED:
        if args.only in shipped.file:
            rows.append(examined(shipped, fast=args.fast))
            print(line(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if args.page:
        how = EXTRAPOLATED if args.fast else ""
        args.page.write_text(INTRODUCTION + how + "\n".join(table(rows)) + "\n", encoding="utf-8")
    return 0 if all(row["legal"] and row["fits"] for row in rows) else 1


def examined(shipped: Shipped, *, fast: bool) -> dict[str, Any]:
    """What check, dry run and plan say of one file."""
    path = str(ROOT / shipped.file)
    world = ["--world-size", str(shipped.devices)]
    code, _ = _output(["config", "check", path, *world])
    words = [*world, "--hardware", shipped.hardware, "--all-stages", "--json"]
    words += ["--target", "cpu"] if shipped.hardware == "cpu" else []
    _, out = _output(["dryrun", path, *words, *(["--fast"] if fast else [])])
    report = json.loads(out)
    worst = next(rank for rank in report["ranks"] if rank["rank"] == report["worst"]["rank"])
    return {
        "file": shipped.file,
        "name": shipped.name,
        "devices": shipped.devices,
        "hardware": shipped.hardware,
        "legal": code == 0,
        "fits": report["fits"],
        "stage": worst["stage"],
        "allocated": worst["allocated"],
        "reserved": worst["reserved"],
        **_planned(path, shipped, worst["stage"]),
    }


def _output(words: list[str]) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = meshwright(words)
    return code, out.getvalue()


def _planned(path: str, shipped: Shipped, stage: int) -> dict[str, Any]:
    loaded = load_config(Path(path))
    run = resolve(loaded, shipped.devices)
    cluster = hardware_cluster(shipped.hardware, shipped.devices)
    question = question_of(Asked(run.model, run.layout, run.train), cluster, engine(ENGINE))
    own = predict(question, job_of_run(run, cluster))
    best = search(question).best
    assert best is not None
    return {
        "layout": own.name,
        "planned": own.memory.stages[stage].allocated,
        "seconds": own.seconds,
        "best": best.name,
        "best_seconds": best.seconds,
    }


def line(row: dict[str, Any]) -> str:
    """One file, for the terminal."""
    fits = "fits" if row["fits"] else "does not fit"
    error = 100 * (row["planned"] / row["allocated"] - 1)
    return (
        f"{row['name']}, {row['devices']} x {row['hardware']}: {row['layout']}: stage {row['stage']},"
        f" {row['allocated'] / GIB:.2f} GiB allocated (plan {error:+.1f} %), {fits}; {row['seconds']:.3g} s,"
        f" best of the plan {row['best']} {row['best_seconds']:.3g} s"
    )


def table(rows: list[dict[str, Any]]) -> list[str]:
    """All of them, as Markdown."""
    lines = [
        "| config | devices | layout | worst stage | allocated | plan | reserved | fits | step, s | plan's best, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        chosen = row["best_seconds"] > 0.99 * row["seconds"]
        cells = [
            f"`{row['name']}`",
            f"{row['devices']} x {row['hardware']}",
            row["layout"],
            str(row["stage"]),
            f"{row['allocated'] / GIB:.2f}",
            f"{row['planned'] / GIB:.2f}",
            _reserved(row["reserved"]),
            "yes" if row["fits"] else "no",
            f"{row['seconds']:.3g}",
            "this" if chosen else f"{row['best']}: {row['best_seconds']:.3g}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _reserved(sizes: dict[str, int] | None) -> str:
    return "" if sizes is None else f"{sizes['native'] / GIB:.1f}, {sizes['expandable'] / GIB:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
