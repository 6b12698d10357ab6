"""The checkpoints that a run writes, in its own step or beside the following ones."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.checkpoint.background import BackgroundSaver, Saved
from meshwright.checkpoint.shared import require_shared
from meshwright.checkpoint.store import save
from meshwright.config.run import Run
from meshwright.train import checkpointing
from meshwright.train.checkpointing import Counters
from meshwright.train.step import TrainState


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """What a call to save came to.

    Attributes:
        stall: seconds that training stood still for it.
        saved: the save that it completed: its own, or in the background the one before; None where there was none.
    """

    stall: float
    saved: Saved | None


class CheckpointWriter:
    """Saves the state of a run, in the way that ``checkpoint.async_save`` says. All ranks call it together.

    Raises CheckpointError where the ranks do not share the folder, before anything is trained.
    """

    def __init__(self, run: Run, state: TrainState, root: Path, device: torch.device, data_fingerprint: str) -> None:
        self._run, self._state, self._root, self._device = run, state, root, device
        self._fingerprint = data_fingerprint
        self._background: BackgroundSaver | None = None
        require_shared(root)
        if run.config.checkpoint.async_save:
            self._background = BackgroundSaver(dist.new_group(backend="gloo"), device)

    def save(self, counters: Counters, run_id: str) -> SaveResult:
        """Save this moment. Raises CheckpointError, also for a save in the background that failed since."""
        started = time.perf_counter()
        what = {
            "tensors": checkpointing.tensors_to_save(self._state),
            "state": checkpointing.run_state(self._run, run_id, counters, self._fingerprint),
            "rank_state": checkpointing.random_state(self._device),
            "run_id": run_id,
            "keep": self._run.config.checkpoint.keep_checkpoint_max,
        }
        if self._background is not None:
            before = self._background.save(self._root, counters.step, **what)
            return SaveResult(stall=time.perf_counter() - started, saved=before)
        path = save(self._root, counters.step, **what)  # type: ignore[arg-type]
        seconds = time.perf_counter() - started
        return SaveResult(stall=seconds, saved=Saved(path, counters.step, seconds))

    def finished(self) -> Saved | None:
        """A save in the background that has ended since the last look, if any. Raises the error that it ended with."""
        return self._background.finished() if self._background else None

    def wait(self) -> Saved | None:
        """The same, waiting for one that is under way."""
        return self._background.wait() if self._background else None
