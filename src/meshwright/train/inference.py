"""One process with the whole model, from a checkpoint of any layout."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from meshwright.checkpoint.store import find_latest, load_tensors, read_state
from meshwright.config.load import load_config
from meshwright.config.run import Run, resolve
from meshwright.model.decoder import Decoder
from meshwright.parallel.devices import DeviceKind
from meshwright.parallel.precision import formats
from meshwright.train.checkpointing import MODEL
from meshwright.train.folders import RunFolder


class NoCheckpointError(ValueError):
    """There is no complete checkpoint where one was asked for."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A trained model.

    Attributes:
        checkpoint: the folder it was read from.
        step: optimizer steps it was trained for.
        run: the run that trained it, as one process sees it.
    """

    model: Decoder
    checkpoint: Path
    step: int
    run: Run


def find_checkpoint(target: Path) -> Path:
    """The checkpoint behind a run directory (its newest), or ``target`` itself where it is one.

    Raises:
        NoCheckpointError: there is none; names what was passed over and why.
    """
    if not target.is_dir():
        raise NoCheckpointError(f"{target}: no such run directory or checkpoint")
    if target.name.startswith("step-"):
        return target
    root = RunFolder(target).checkpoints
    found = find_latest(root)
    if found.path is None:
        skipped = "".join(f"\n  passed over {path}: {reason}" for path, reason in found.skipped)
        raise NoCheckpointError(f"{root}: no complete checkpoint{skipped}")
    return found.path


def load_model(target: Path, *, kind: DeviceKind, device: torch.device) -> LoadedModel:
    """Load the weights of a run or checkpoint into one model, in evaluation mode."""
    checkpoint = find_checkpoint(target)
    state = read_state(checkpoint)
    run = run_of(state["config"])
    chosen = formats(run.train.precision, kind)
    with torch.device("meta"):
        model = Decoder(run.model, seq_length=run.train.seq_length)
    # Without an optimizer nothing needs the master copy: weights go straight to the dtype of the products.
    model.to(chosen.compute).to_empty(device=device)
    weights = {MODEL + name: parameter.detach() for name, parameter in model.named_parameters()}
    load_tensors(checkpoint, weights, prefix=MODEL, cast=True, no_dist=True)
    return LoadedModel(model=model.eval(), checkpoint=checkpoint, step=state["counters"]["step"], run=run)


def run_of(config_text: str) -> Run:
    """The run that a saved config describes, cut down to one rank: the model does not depend on the layout."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(config_text)
        file.flush()
        one_rank = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel")
        overrides = [f"parallel_config.{name}=1" for name in one_rank]
        overrides += ["parallel_config.stage_layers=null", "parallel_config.zero_group_size=null"]
        overrides += ["parallel_config.micro_batch_num=null"]
        # Weights come from the checkpoint; where the run once started from may be gone.
        overrides += ["model.pretrained_model_dir=null", "run_mode=pretrain"]
        return resolve(load_config(Path(file.name), overrides), 1)
