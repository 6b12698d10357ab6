"""Everything about a run that can be wrong before its workers start."""

import os
from dataclasses import replace

import torch

from meshwright.checkpoint.store import CheckpointError
from meshwright.config.run import Run
from meshwright.data.errors import DataError
from meshwright.parallel.devices import DeviceKind, local_device_kind, supports_bfloat16
from meshwright.spec.support import unsupported
from meshwright.train.folders import run_folder
from meshwright.train.inputs import ResumeError, eval_dataset, find_start, total_steps, train_dataset
from meshwright.train.pretrained import pretrained_weights
from meshwright.train.space import space_problems
from meshwright.train.vocabularies import check_vocabularies


def check(run: Run, *, kind: DeviceKind | None = None) -> list[str]:
    """One message for each mistake; an empty list where training can start."""
    kind = kind or local_device_kind()
    messages = [*_folder_problems(run), *_device_problems(run, kind), *_precision_problems(run, kind)]
    try:
        data = train_dataset(run)
        held_out = eval_dataset(run)
        check_vocabularies(run.config.dataset)
        steps = total_steps(run, data)
        start = find_start(run, data.fingerprint())
        if start.resume is None:
            pretrained_weights(run)
    except (DataError, ResumeError, CheckpointError) as error:
        return [*messages, str(error)]
    except ValueError as error:
        return [*messages, f"train: the run has no step to make: {error}"]
    if run.config.train.eval_steps is not None and held_out is None:
        messages.append("train.eval_steps is set, but dataset.eval_paths names no held-out data")
    return [*messages, *space_problems(run, steps, start.resume)]


def _device_problems(run: Run, kind: DeviceKind) -> list[str]:
    local = int(os.environ.get("LOCAL_WORLD_SIZE", run.layout.world_size))
    if run.config.monitor.track_memory and kind.name != "cpu":
        return [f"monitor.track_memory: is for CPUs; the allocator of {kind.name} counts and is compared in every run"]
    if kind.name == "cpu" or local <= torch.accelerator.device_count():
        return []
    return [f"{local} ranks on this node, but it has {torch.accelerator.device_count()} {kind.name} devices"]


def _precision_problems(run: Run, kind: DeviceKind) -> list[str]:
    """``dtype: auto`` is decided by the device: what the support matrix refuses is known only now."""
    if run.train.precision.dtype != "auto" or supports_bfloat16(kind):
        return []
    decided = replace(run.train, precision=replace(run.train.precision, dtype="float16"))
    return [
        f"{violation} (dtype auto is float16 on this {kind.name})"
        for violation in unsupported(run.model, run.layout, decided, device=kind.name)
    ]


def _folder_problems(run: Run) -> list[str]:
    root = run_folder(run.config).root
    existing = next(parent for parent in (root.absolute(), *root.absolute().parents) if parent.exists())
    if root.exists() and not root.is_dir():
        return [f"output_dir: {root} is a file"]
    if not os.access(existing, os.W_OK):
        return [f"output_dir: {existing} is not writable"]
    return []
