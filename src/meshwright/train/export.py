"""A trained model as a folder of other tools: weights, config.json and the tokenizer of its data."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from meshwright.checkpoint.huggingface_export import SHARD_SIZE, Exported, export_checkpoint
from meshwright.checkpoint.store import read_state
from meshwright.config.run import Run
from meshwright.data.record import tokenizer_path
from meshwright.data.vocabulary.tokenizer import load_tokenizer
from meshwright.train.checkpointing import MODEL
from meshwright.train.inference import find_checkpoint, run_of

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
BESIDE_A_TOKENIZER = (
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was exported: from where, to where, and with which tokenizer (None: none was found)."""

    checkpoint: Path
    step: int
    written: Exported
    tokenizer: Path | None


def export_model(
    target: Path,
    out: Path,
    *,
    write: Callable[..., Exported] = export_checkpoint,
    dtype: torch.dtype | None = None,
    shard_size: int = SHARD_SIZE,
    tokenizer: Path | None = None,
) -> Export:
    """Export a run's newest checkpoint, or the checkpoint ``target``.

    Args:
        write: the format: `export_checkpoint` (Hugging Face) or `export_mindformers`.
        tokenizer: tokenizer.json or its folder; None takes that of the run's data, where it still lies there.

    Raises:
        NoCheckpointError, CheckpointError, DataError (the tokenizer), OSError.
    """
    checkpoint = find_checkpoint(target)
    state = read_state(checkpoint)
    run = run_of(state["config"])
    source = tokenizer or _tokenizer_of(run, yaml.safe_load(state["config"]))
    files, settings = _tokenizer_files(source) if source else ({}, {})
    written = write(
        checkpoint,
        out,
        run.model,
        prefix=MODEL,
        dtype=dtype,
        shard_size=shard_size,
        config=settings,
        others=files,
    )
    return Export(checkpoint=checkpoint, step=state["counters"]["step"], written=written, tokenizer=source)


def _tokenizer_of(run: Run, saved: dict[str, Any]) -> Path | None:
    """The tokenizer that the config names, that of the model it started from, or the one beside its data."""
    named = run.config.dataset.tokenizer
    started_from = saved["model"].get("pretrained_model_dir")
    candidates = [Path(named)] if named else []
    candidates += [Path(started_from) / TOKENIZER] if started_from else []
    candidates += [tokenizer_path(Path(entry.path)) for entry in run.config.dataset.paths]
    return next((path for path in candidates if path.exists()), None)


def _tokenizer_files(source: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Files to put into the folder, and the keys of config.json that the tokenizer decides."""
    tokenizer = load_tokenizer(source)
    name = f"tokenizer{tokenizer.suffix}"
    files = {name: tokenizer.body}
    if source.is_dir() or source.name == name:
        beside = {other: (source if source.is_dir() else source.parent) / other for other in BESIDE_A_TOKENIZER}
        files |= {other: path.read_bytes() for other, path in beside.items() if path.exists()}
    if TOKENIZER_CONFIG not in files:
        config: dict[str, Any] = {"eos_token": tokenizer.eos_token, "clean_up_tokenization_spaces": False}
        # transformers reads a sentencepiece model as the library does with "legacy", and without a class of its own.
        config |= {"tokenizer_class": "PreTrainedTokenizerFast"} if name == TOKENIZER else {"legacy": True}
        files[TOKENIZER_CONFIG] = json.dumps(config, indent=2).encode() + b"\n"
    # Otherwise transformers fills in the ids of its family's first model, which are other tokens here.
    return files, {"eos_token_id": tokenizer.eos_id, "bos_token_id": None}
