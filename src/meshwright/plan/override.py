"""A layout of the planner as config keys: overrides to paste, and a config file that train runs."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.config.load import LoadedConfig, load_config
from meshwright.config.run import Run, resolve, resolved_yaml
from meshwright.config.validate import show
from meshwright.plan.job import Job


def keys_of(job: Job) -> dict[str, Any]:
    """Every config key that a layout decides, with its value."""
    layout, batch = job.layout, job.batch
    return {
        "parallel_config.data_parallel": layout.data_parallel,
        "parallel_config.model_parallel": layout.model_parallel,
        "parallel_config.pipeline_stage": layout.pipeline_stage,
        "parallel_config.context_parallel": layout.context_parallel,
        "parallel_config.expert_parallel": layout.expert_parallel,
        "parallel_config.micro_batch_num": batch.micro_batch_num,
        "parallel_config.use_seq_parallel": layout.use_seq_parallel,
        "parallel_config.zero_stage": layout.zero_stage,
        "parallel_config.zero_group_size": layout.zero_group_size,
        "parallel_config.pipeline_schedule": layout.pipeline_schedule,
        "parallel_config.stage_layers": layout.stage_layers,
        "train.micro_batch_size": batch.micro_batch_size,
        "train.global_batch_size": batch.global_batch_size,
        "recompute_config.recompute": job.recompute.layers == "all",
        "recompute_config.select_recompute": job.recompute.select,
    }


def overrides(job: Job, loaded: LoadedConfig) -> list[str]:
    """``key=value`` for every key whose value the config does not have already, ready for the command line."""
    wanted, present = keys_of(job), _present(loaded)
    return [f"{key}={show(value)}" for key, value in wanted.items() if present[key] != value]


def pasteable(words: Sequence[str]) -> str:
    """Overrides as one line for a shell."""
    return " ".join(shlex.quote(word) for word in words)


def resolved_with(job: Job, loaded: LoadedConfig, given: Sequence[str]) -> Run:
    """The run that a config becomes with a layout put in.

    Args:
        given: overrides that the config was loaded with.

    Raises:
        ConfigErrors: train would refuse it.
    """
    return resolve(load_config(loaded.path, [*given, *overrides(job, loaded)]), job.layout.world_size)


def written_config(run: Run, heading: Sequence[str]) -> str:
    """A whole config, with comment lines in front that say where it comes from."""
    comments = "".join(f"# {line}\n" for line in heading)
    return comments + resolved_yaml(run)


def _present(loaded: LoadedConfig) -> Mapping[str, Any]:
    config = loaded.config
    sections = {
        "parallel_config": config.parallel_config,
        "train": config.train,
        "recompute_config": config.recompute_config,
    }
    found: dict[str, Any] = {}
    for section, values in sections.items():
        found |= {f"{section}.{key}": value for key, value in values}
    return found
