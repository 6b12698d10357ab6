"""From a checkpoint of any layout to MindSpore safetensors under MindFormers' names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.checkpoint.errors import CheckpointMismatch
from meshwright.checkpoint.files import to_json
from meshwright.checkpoint.huggingface_export import SHARD_SIZE, Exported, PaddedReader, torch_dtype, write_folder
from meshwright.checkpoint.safetensors_file import Entry
from meshwright.model.mindformers import LEGACY, MCORE, find_theirs, fuse
from meshwright.spec.huggingface import to_config_json
from meshwright.spec.model import ModelSpec


def export_mindformers(
    checkpoint: Path,
    out: Path,
    spec: ModelSpec,
    *,
    prefix: str,
    dtype: torch.dtype | None = None,
    shard_size: int = SHARD_SIZE,
    config: Mapping[str, Any] | None = None,
    others: Mapping[str, bytes] | None = None,
) -> Exported:
    """Write the weights as MindFormers' Llama (also Qwen2) or, with QK-norm, its mcore Qwen3 holds them.

    Arguments and errors are those of `export_checkpoint`. At most the parts of one fused tensor are in memory.
    """
    reader = PaddedReader.open(checkpoint, spec, prefix)
    try:
        places = find_theirs(reader.shapes, spec.num_layers, MCORE if spec.qk_norm else LEGACY)
        settings = to_config_json(spec)
    except (KeyError, ValueError) as error:
        raise CheckpointMismatch(f"MindFormers has no name for {error}") from error
    entries = {
        theirs: Entry(
            dtype or reader.dtypes[place.parts[0]],
            (sum(reader.shapes[part][0] for part in place.parts), *reader.shapes[place.parts[0]][1:]),
        )
        for theirs, place in places.items()
    }

    def read(theirs: str) -> Tensor:
        place = places[theirs]
        parts = [reader.read(part).to(entries[theirs].dtype) for part in place.parts]
        return fuse(parts, place.layout, (spec.num_heads, spec.num_kv_heads))

    content = to_json(settings | {"torch_dtype": torch_dtype(entries)} | dict(config or {}))
    files = {"config.json": content, **(others or {})}
    return write_folder(out, entries, read, shard_size=shard_size, files=files, kind="ms")
