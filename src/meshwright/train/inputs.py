"""What a run reads: its data and the checkpoint it starts from. Used before the workers start and by each of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.checkpoint.store import find_latest, read_state
from meshwright.config.run import Run
from meshwright.config.schema import DataPath
from meshwright.data.blend import BlendedDataset
from meshwright.data.dataset import TokenDataset
from meshwright.launch.restart import RESTART_FROM
from meshwright.spec.schedule import planned_steps
from meshwright.train.checkpointing import identity, identity_differences
from meshwright.train.folders import run_folder

TrainingData = TokenDataset | BlendedDataset


class ResumeError(ValueError):
    """The checkpoint a run should continue cannot be continued by it."""


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A checkpoint to go on from, with the run state saved in it."""

    path: Path
    state: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a run starts.

    Attributes:
        resume: the checkpoint it goes on from; None where it starts anew.
        passed_over: one line for each newer checkpoint that was not taken, with the reason.
    """

    resume: Resume | None
    passed_over: tuple[str, ...] = ()


def train_dataset(run: Run) -> TrainingData:
    """The training data: corpora end to end, or blended where they have weights.

    Raises:
        DataError: it cannot be trained on.
    """
    entries = run.config.dataset.paths
    weights = [entry.weight for entry in entries if entry.weight is not None]
    if len(entries) == 1 or not weights:
        return _windows(run, entries)
    return BlendedDataset([_windows(run, [entry]) for entry in entries], weights)


def eval_dataset(run: Run) -> TokenDataset | None:
    """The held-out data, its last sample filled up rather than left out; None where the config names none."""
    entries = run.config.dataset.eval_paths
    return _windows(run, entries, pad_last=True) if entries else None


def _windows(run: Run, entries: Sequence[DataPath], *, pad_last: bool = False) -> TokenDataset:
    return TokenDataset(
        [entry.path for entry in entries],
        run.train.seq_length,
        vocab_size=run.model.vocab_size,
        pad_last=pad_last,
        isolate_documents=run.train.isolate_documents,
        align_documents=run.config.dataset.align_documents,
    )


def total_steps(run: Run, data: TrainingData) -> int:
    """Optimizer steps of the whole run. Raises ValueError where there is none to make."""
    train = run.train
    return planned_steps(train.duration, train.tokens_per_step, train.batch.global_batch_size, data.num_samples)


def find_start(run: Run, data_fingerprint: str) -> Start:
    """What ``checkpoint.resume`` asks for, or the checkpoint that restarted ranks go on from.

    Raises:
        ResumeError: the checkpoint that is named, or every one there is, is damaged; or it belongs to a run that is
            not this one, and the message lists what differs.
    """
    choice = os.environ.get(RESTART_FROM) or run.config.checkpoint.resume
    root = run_folder(run.config).checkpoints
    if choice not in ("auto", "never"):
        return Start(resume=_checked(Path(choice), run, data_fingerprint))
    found = find_latest(root)
    if choice == "never":
        if found.path is not None:
            raise ResumeError(
                f"checkpoint.resume is never, but {root} holds checkpoints ({found.path.name}); choose another "
                "output_dir, or remove them"
            )
        return Start(resume=None)
    passed_over = tuple(f"{path}: {reason}" for path, reason in found.skipped)
    if found.path is not None:
        return Start(resume=_checked(found.path, run, data_fingerprint), passed_over=passed_over)
    # A save that never finished is nothing lost; a committed one that cannot be read is for the user to decide on.
    if any(not path.name.startswith(".") for path, _ in found.skipped):
        lines = "\n  ".join(passed_over)
        raise ResumeError(
            f"{root} holds checkpoints, but none is complete:\n  {lines}\nmove them away to start anew, or name one in "
            "checkpoint.resume"
        )
    return Start(resume=None, passed_over=passed_over)


def _checked(path: Path, run: Run, data_fingerprint: str) -> Resume:
    state = read_state(path)
    # Checkpoints from before documents could be isolated or aligned do not say that they were not.
    before = {"dataset.isolate_documents": False, "dataset.align_documents": False}
    saved = before | state.get("identity", {})
    differences = identity_differences(saved, identity(run, data_fingerprint))
    if differences:
        lines = "\n  ".join(differences)
        raise ResumeError(
            f"{path} is a checkpoint of another run; resume would not continue it:\n  {lines}\n"
            "choose another output_dir or checkpoint.resume, or make the config equal"
        )
    return Resume(path=path, state=state)
