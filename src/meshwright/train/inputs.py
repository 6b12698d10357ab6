"""What a run reads: its data and the checkpoint it starts from. Used before the workers start and by each of them."""

from dataclasses import dataclass
from pathlib import Path

from meshwright.checkpoint.store import find_latest, read_state
from meshwright.config.run import Run
from meshwright.data.dataset import TokenDataset
from meshwright.train.checkpointing import identity, identity_differences
from meshwright.train.folders import run_folder


class ResumeError(ValueError):
    """The checkpoint a run should continue cannot be continued by it."""


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A checkpoint to start from.

    Attributes:
        skipped: one line for each newer checkpoint that was passed over.
    """

    path: Path
    state: dict[str, object]
    skipped: tuple[str, ...] = ()


def train_dataset(run: Run) -> TokenDataset:
    """The training data. Raises DataError where it cannot be trained on."""
    entries = run.config.dataset.paths
    return TokenDataset(
        [entry.path for entry in entries],
        run.train.seq_length,
        vocab_size=run.model.vocab_size,
        weights=[entry.weight for entry in entries],
    )


def eval_dataset(run: Run) -> TokenDataset | None:
    """The held-out data, every token of it; None where the config names none."""
    entries = run.config.dataset.eval_paths
    if not entries:
        return None
    return TokenDataset(
        [entry.path for entry in entries], run.train.seq_length, vocab_size=run.model.vocab_size, pad_last=True
    )


def find_resume(run: Run, data_fingerprint: str) -> Resume | None:
    """The checkpoint that ``checkpoint.resume`` asks for, or None where the run starts anew.

    Raises:
        ResumeError: there is none where one is named, it is damaged, or it belongs to a run that is not this one;
            the message lists what differs.
    """
    choice = run.config.checkpoint.resume
    root = run_folder(run.config).checkpoints
    found = find_latest(root)
    if choice == "never":
        if found.path is not None:
            raise ResumeError(
                f"checkpoint.resume is never, but {root} holds checkpoints ({found.path.name}); choose another "
                "output_dir, or remove them"
            )
        return None
    if choice == "auto":
        skipped = tuple(f"{path}: {reason}" for path, reason in found.skipped)
        if found.path is None:
            return None
        return _checked(found.path, run, data_fingerprint, skipped)
    return _checked(Path(choice), run, data_fingerprint, ())


def _checked(path: Path, run: Run, data_fingerprint: str, skipped: tuple[str, ...]) -> Resume:
    state = read_state(path)
    saved = state.get("identity", {})
    assert isinstance(saved, dict)
    differences = identity_differences(saved, identity(run, data_fingerprint))
    if differences:
        lines = "\n  ".join(differences)
        raise ResumeError(
            f"{path} is a checkpoint of another run; resume would not continue it:\n  {lines}\n"
            "choose another output_dir or checkpoint.resume, or make the config equal"
        )
    return Resume(path=path, state=state, skipped=skipped)
