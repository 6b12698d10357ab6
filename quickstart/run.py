"""The quickstart: a model trained, stopped, resumed on another layout and sampled, on this machine alone.

It runs Meshwright's own commands and shows each of them. Nothing is downloaded: the text is the source code of
Python's standard library. ``make quickstart`` starts it.
"""

import argparse
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from commands import Legs, StepFailed, output, read_metrics, run, train
from corpus import copy_standard_library

from meshwright.checkpoint.locate import find_latest

MARKER = ".made-by-quickstart"
DATA = "data/quickstart/corpus"
CONFIG = "quickstart.yaml"
RUN = "runs/quickstart"
# Two micro-batches on both layouts: larger ones suit a few cores that four processes share.
FIRST_LAYOUT = ("train.micro_batch_size=8",)
SECOND_LAYOUT = ("parallel_config.data_parallel=2", "parallel_config.model_parallel=1", "train.micro_batch_size=4")
# Steps that the first leg goes on after its checkpoint, so that the same steps can be compared on both layouts.
STEPS_TO_COMPARE = 3
# fp32 sums in another order, amplified by a few updates.
SAME_LOSS = 0.01
HELD_OUT_FILES = 12
INTERRUPTED = 130


@dataclass
class Quickstart:
    """One run of the quickstart: what was asked for, and the seconds of each part."""

    folder: Path
    steps: int
    corpus_bytes: int
    vocab_size: int
    max_loss: float
    prompt: str
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def stop_after(self) -> int:
        """The step whose checkpoint the first leg is stopped after."""
        return max(1, self.steps * 2 // 5)

    def config_overrides(self) -> list[str]:
        """Where this run differs from the recipe."""
        return [
            f"model.vocab_size={self.vocab_size}",
            f"train.train_steps={self.steps}",
            f"train.eval_steps={self.stop_after}",
            "train.eval_batches=null",
            f"checkpoint.save_checkpoint_steps={self.stop_after}",
        ]

    @contextmanager
    def part(self, number: int, title: str) -> Iterator[None]:
        """Say what comes, and time it."""
        print(f"\n== {number}/6 {title}", flush=True)
        started = time.perf_counter()
        yield
        self.seconds[title] = time.perf_counter() - started


def main() -> int:
    """0 done, 1 a check failed, 2 the request was wrong, 130 interrupted."""
    args = _arguments()
    folder = args.folder.resolve()
    quick = Quickstart(
        folder=folder,
        steps=args.steps,
        corpus_bytes=int(args.corpus_mb * 1e6),
        vocab_size=args.vocab_size,
        max_loss=args.max_loss,
        prompt=args.prompt,
    )
    try:
        if not _make_folder(folder):
            return _end(f"{folder} exists and was not made by the quickstart; choose another with --folder", 2)
        _tour(quick)
    except (StepFailed, OSError) as error:
        return _end(str(error), 1)
    except KeyboardInterrupt:
        return _end("interrupted; make quickstart starts anew", INTERRUPTED)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make quickstart", description="Train a small model from start to finish.")
    parser.add_argument("--folder", type=Path, default=Path("quickstart_run"), help="where everything goes")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of the run")
    parser.add_argument("--corpus-mb", type=float, default=10.0, help="megabytes of source code to train on, at most")
    parser.add_argument("--vocab-size", type=int, default=2048, help="tokens of the tokenizer")
    parser.add_argument("--max-loss", type=float, default=4.5, help="held-out loss to stay below, in nats per token")
    parser.add_argument("--prompt", default="def read(self, path):\n    ", help="text that the model continues")
    args = parser.parse_args()
    if args.steps < 10:
        parser.error(f"--steps {args.steps}: must be 10 or more")
    return args


def _make_folder(folder: Path) -> bool:
    if folder.exists():
        if not (folder / MARKER).exists():
            return False
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    return True


def _end(message: str, code: int) -> int:
    print(f"quickstart: {message}", file=sys.stderr)
    return code


def _tour(quick: Quickstart) -> None:
    started = time.perf_counter()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("meshwright", "torch"))
    print(f"{versions}, Python {platform.python_version()}, {os.cpu_count()} cores; everything goes to {quick.folder}")
    print("commands are run in that folder")
    with quick.part(1, "corpus and tokenizer"):
        _prepare(quick)
    with quick.part(2, "train on tensor 2 x pipeline 2, until Ctrl-C"):
        _first_leg(quick)
    with quick.part(3, "resume on data 2 x pipeline 2"):
        legs = _second_leg(quick)
    with quick.part(4, "held-out loss, on one process"):
        held_out = _evaluate(quick, legs)
    with quick.part(5, "what the model writes"):
        run(quick.folder, "generate", RUN, "--prompt", quick.prompt, "--max-tokens", "120", "--temperature", "0.6")
    print("\n== 6/6 summary", flush=True)
    _summary(quick, legs, held_out, time.perf_counter() - started)


def _prepare(quick: Quickstart) -> None:
    found = copy_standard_library(quick.folder / "text", quick.corpus_bytes)
    print(
        f"copied {found.files} of {found.files_in_all} source files of the standard library to text/ "
        f"({found.size / 1e6:.1f} of {found.size_in_all / 1e6:.1f} MB)"
    )
    # Documents are held out by a hash of their text: this share makes it about a dozen, and hardly ever none.
    share = f"{min(0.2, HELD_OUT_FILES / found.files):.3f}"
    tokenizer = ("--train-tokenizer", str(quick.vocab_size), "--eval-fraction", share)
    run(quick.folder, "data", "prepare", "text", "--suffix", ".py", *tokenizer, "--output", DATA)


def _first_leg(quick: Quickstart) -> None:
    run(quick.folder, "config", "init", "quickstart", "--output", CONFIG)
    metrics = quick.folder / RUN / "metrics.jsonl"
    last = quick.stop_after + STEPS_TO_COMPARE

    def far_enough() -> bool:
        return metrics.exists() and max(read_metrics(metrics).first, default=0) >= last

    command = ["train", CONFIG, *quick.config_overrides(), *FIRST_LAYOUT]
    ended = train(quick.folder, command, metrics=metrics, steps=quick.steps, stop=far_enough)
    if ended.code != INTERRUPTED:
        raise StepFailed(f"the first leg should have been stopped by Ctrl-C, but ended with exit code {ended.code}")
    if ended.left:
        raise StepFailed(f"Ctrl-C left processes behind: {ended.left}")
    checkpoint = find_latest(quick.folder / RUN / "checkpoints")
    if checkpoint.step != quick.stop_after:
        raise StepFailed(f"there should be a complete checkpoint of step {quick.stop_after}, not {checkpoint.step}")
    print(
        f"all {ended.processes} processes of the run have ended; the checkpoint of step {checkpoint.step} is complete"
    )


def _second_leg(quick: Quickstart) -> Legs:
    metrics = quick.folder / RUN / "metrics.jsonl"
    command = ["train", CONFIG, *quick.config_overrides(), *SECOND_LAYOUT]
    ended = train(quick.folder, command, metrics=metrics, steps=quick.steps)
    if ended.code:
        raise StepFailed(f"the resumed training ended with exit code {ended.code}")
    legs = read_metrics(metrics)
    if not legs.common():
        raise StepFailed("no step was made on both layouts: the run did not go on from its checkpoint")
    if missing := set(range(1, quick.steps + 1)) - legs.first.keys() - legs.second.keys():
        raise StepFailed(f"steps that were never made: {sorted(missing)}")
    print("the steps after the checkpoint were made on both layouts, with the same data and the same loss:")
    for step in legs.common():
        before, after = legs.first[step]["train/loss"], legs.second[step]["train/loss"]
        print(f"  step {step}: loss {before:.5f} on tensor 2 x pipeline 2, {after:.5f} on data 2 x pipeline 2")
        if abs(before - after) > SAME_LOSS:
            raise StepFailed(f"the loss of step {step} jumped by {abs(before - after):.4f} at the resume")
    return legs


def _evaluate(quick: Quickstart, legs: Legs) -> float:
    result = json.loads(output(quick.folder, "eval", RUN, "--json"))
    loss, trained = float(result["loss"]), legs.evaluations[quick.steps]
    print(f"step {result['step']}: {loss:.4f} nats per token over {result['tokens']:,} held-out tokens")
    print(f"the four processes found {trained:.4f} at the end of the training")
    check_held_out(quick, loss, legs)
    return loss


def check_held_out(quick: Quickstart, loss: float, legs: Legs) -> None:
    """Raises StepFailed where one process and the training disagree, or the loss is not below the bound."""
    trained = legs.evaluations[quick.steps]
    if abs(loss - trained) > SAME_LOSS:
        raise StepFailed(f"one process finds a held-out loss of {loss:.4f}, the training found {trained:.4f}")
    if not loss < quick.max_loss:
        raise StepFailed(f"the held-out loss is {loss:.4f}, not below {quick.max_loss}")


def _summary(quick: Quickstart, legs: Legs, held_out: float, seconds: float) -> None:
    first = legs.first[1]["train/loss"]
    guess = math.log(quick.vocab_size)
    steps = {**legs.first, **legs.second}
    speeds = [record["speed/tokens_per_s"] for record in steps.values()]
    print(
        f"loss of the untrained model    {first:.3f} nats per token (blind guess: ln {quick.vocab_size} = {guess:.3f})"
    )
    print(f"held-out loss at step {quick.stop_after:<9}{legs.evaluations[quick.stop_after]:.3f}")
    print(f"held-out loss at the end       {held_out:.3f} (asked for: below {quick.max_loss})")
    print(f"tokens trained on              {steps[quick.steps]['train/tokens']:,.0f} in {quick.steps} steps")
    print(f"tokens per second              {min(speeds):,.0f} to {max(speeds):,.0f}")
    print(f"memory of one process          {max(r['memory/peak_gib'] for r in steps.values()):.2f} GiB at most")
    for title, spent in quick.seconds.items():
        print(f"{spent:6.0f} s  {title}")
    print(f"{seconds:6.0f} s  in all")
    folder = os.path.relpath(quick.folder)
    command = os.path.relpath(Path(sys.executable).with_name("meshwright"), folder)
    print(f"""
Files, in {folder}:
  {CONFIG:<26}the config; every key: docs/configuration.md
  {DATA + ".*":<26}token files, tokenizer, and a record of how they were made
  {RUN + "/":<26}checkpoints, metrics.jsonl, TensorBoard events, a log of each rank

What to try next, in that folder (meshwright is {command}):
  meshwright generate {RUN} --prompt "class "
  meshwright train {CONFIG} output_dir=runs/zero3 parallel_config.zero_stage=3 parallel_config.data_parallel=2 \\
      parallel_config.model_parallel=1
  meshwright config check {CONFIG} train.micro_batch_size=3    # what is wrong, and what would be legal
  meshwright config list                                           # starter configs, up to 70B
  meshwright data prepare YOUR_TEXT --train-tokenizer 2048 --output data/mine""")


if __name__ == "__main__":
    sys.exit(main())
