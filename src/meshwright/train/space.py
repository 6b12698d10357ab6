"""Whether the disk holds the checkpoints that a run will write, known before it starts."""

import math
from pathlib import Path

from meshwright.checkpoint.files import free_bytes, human_bytes
from meshwright.checkpoint.locate import bytes_held
from meshwright.config.run import Run
from meshwright.spec.parameters import total
from meshwright.train.folders import run_folder
from meshwright.train.inputs import Resume

TENSORS_PER_PARAMETER = 3
"""The weight and the two moments of AdamW, all in the dtype that weights are stored in."""


def checkpoint_bytes(run: Run) -> int:
    """About the size of one checkpoint: its tensors, without the few kilobytes of frame around each."""
    stored = 2 if run.train.precision.amp_level == "O3" else 4
    return TENSORS_PER_PARAMETER * stored * total(run.model, padded=True)


def space_problems(run: Run, total_steps: int, resume: Resume | None) -> list[str]:
    """One message with path, needed and free bytes where the checkpoints of the run will not fit; else nothing.

    At most ``keep_checkpoint_max`` and the one being written are there at once; those that the run already has count.
    """
    root = run_folder(run.config).checkpoints
    config = run.config.checkpoint
    held = _held(resume, root)
    done = resume.state["counters"]["step"] if resume else 0
    saves = math.ceil(total_steps / config.save_checkpoint_steps) - done // config.save_checkpoint_steps
    at_once = min(config.keep_checkpoint_max + 1, len(held) + max(saves, 0))
    size = checkpoint_bytes(run)
    needed, free = at_once * size - sum(held), free_bytes(root)
    if needed <= free:
        return []
    place = next(parent for parent in (root.absolute(), *root.absolute().parents) if parent.exists())
    message = (
        f"output_dir: checkpoints will need about {human_bytes(needed)} more ({at_once} x {human_bytes(size)} at once: "
        f"{saves} saves to come, keep_checkpoint_max {config.keep_checkpoint_max} and the one being written), "
        f"{place} has {human_bytes(free)} free"
    )
    possible = (free + sum(held)) // size - 1
    way_out = f"checkpoint.keep_checkpoint_max={possible} fits" if possible >= 1 else "choose another output_dir"
    return [f"{message}; {way_out}"]


def _held(resume: Resume | None, root: Path) -> list[int]:
    """Bytes of each checkpoint that this run already has in its own folder."""
    if resume is None or resume.path.parent.resolve() != root.resolve():
        return []
    return bytes_held(root, resume.state["run_id"])
