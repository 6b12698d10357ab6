"""One process with the whole model, from a checkpoint of any layout or a Hugging Face directory."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from meshwright.checkpoint.store import find_latest, load_tensors, read_state
from meshwright.config.load import load_config
from meshwright.config.run import Run, resolve
from meshwright.data.vocabulary.tokenizer import FILES
from meshwright.model.decoder import Decoder
from meshwright.model.init import fill_weights
from meshwright.parallel.devices import DeviceKind
from meshwright.parallel.precision import formats
from meshwright.spec.huggingface import read_model_spec
from meshwright.spec.parameters import EMBEDDING
from meshwright.train.checkpointing import MODEL
from meshwright.train.folders import RunFolder
from meshwright.train.pretrained import pretrained_weights

LONGEST_CONTEXT = 4096
"""Tokens of context for a Hugging Face model, which may name a far longer one than a look at it needs."""


class NoCheckpointError(ValueError):
    """There is no complete checkpoint where one was asked for."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A trained model.

    Attributes:
        checkpoint: the folder it was read from.
        step: optimizer steps it was trained for; None where the folder does not say.
        run: the run that trained it, as one process sees it; for a Hugging Face directory one that could.
    """

    model: Decoder
    checkpoint: Path
    step: int | None
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
    """Load the weights of a run, a checkpoint or a Hugging Face directory into one model, in evaluation mode."""
    if (target / "config.json").is_file():
        return _load_huggingface(target, kind, device)
    checkpoint = find_checkpoint(target)
    state = read_state(checkpoint)
    run = run_of(state["config"])
    model = _empty_model(run, kind, device)
    weights = {MODEL + name: parameter.detach() for name, parameter in model.named_parameters()}
    load_tensors(checkpoint, weights, prefix=MODEL, cast=True, no_dist=True)
    return LoadedModel(model=model.eval(), checkpoint=checkpoint, step=state["counters"]["step"], run=run)


def run_of(config_text: str) -> Run:
    """The run that a saved config describes, cut down to one rank: the model does not depend on the layout."""
    one_rank = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel")
    overrides = [f"parallel_config.{name}=1" for name in one_rank]
    overrides += ["parallel_config.stage_layers=null", "parallel_config.zero_group_size=null"]
    overrides += ["parallel_config.micro_batch_num=null"]
    # Weights come from the checkpoint; where the run once started from may be gone.
    overrides += ["model.pretrained_model_dir=null", "run_mode=pretrain"]
    return _resolve(config_text, overrides)


def _load_huggingface(folder: Path, kind: DeviceKind, device: torch.device) -> LoadedModel:
    spec = read_model_spec(folder)
    config: dict[str, Any] = {
        "model": {"pretrained_model_dir": str(folder)},
        "train": {"seq_length": min(spec.max_position_embeddings, LONGEST_CONTEXT)},
    }
    if tokenizer := next((folder / name for name in FILES if (folder / name).is_file()), None):
        config["dataset"] = {"tokenizer": str(tokenizer)}
    weights = pretrained_weights(_resolve(yaml.safe_dump(config), []))
    if weights is None:
        raise NoCheckpointError(f"{folder}: holds a config.json, but no weights")
    dtype = str(weights.dtype(EMBEDDING)).removeprefix("torch.")
    if dtype in ("bfloat16", "float16"):
        config["amp_config"] = {"amp_level": "O2", "dtype": dtype}
    run = _resolve(yaml.safe_dump(config), [])
    model = _empty_model(run, kind, device)
    fill_weights(model, weights.initial)
    return LoadedModel(model=model.eval(), checkpoint=folder, step=None, run=run)


def _empty_model(run: Run, kind: DeviceKind, device: torch.device) -> Decoder:
    chosen = formats(run.train.precision, kind)
    with torch.device("meta"):
        model = Decoder(run.model, seq_length=run.train.seq_length)
    # Without an optimizer nothing needs the master copy: weights go straight to the dtype of the products.
    model.to(chosen.compute).to_empty(device=device)
    return model


def _resolve(config_text: str, overrides: list[str]) -> Run:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(config_text)
        file.flush()
        return resolve(load_config(Path(file.name), overrides), 1)
