"""Rules on keys that no spec value holds: words of the vocabulary that this version refuses by name, and order."""

from pathlib import Path

from meshwright.config.schema import Config
from meshwright.spec.huggingface import has_weights
from meshwright.spec.violation import Violation


def key_violations(config: Config) -> list[Violation]:
    """Every such rule that a config breaks."""
    first, last = config.monitor.profile_steps or (1, 1)
    data = config.dataset
    weighted = [entry.weight is not None for entry in data.paths]
    requests = (
        (
            config.run_mode == "finetune" and not _has_pretrained_weights(config),
            "run_mode",
            "finetune starts from trained weights, and model.pretrained_model_dir names no directory that holds some",
            "pretrain",
        ),
        (config.model.moe is not None, "model.moe", "mixture of experts is not supported yet", "null (dense)"),
        (config.pet_config is not None, "pet_config", "parameter-efficient tuning is not supported yet", "null"),
        (
            bool(config.parallel_config.shard),
            "parallel_config.shard",
            "tensor sharding by hand is not supported yet; model_parallel shards every matrix by its kind",
            "{}",
        ),
        (
            config.recompute_config.offload,
            "recompute_config.offload",
            "keeping activations in host memory is not supported yet; recompute saves the same memory",
            "false",
        ),
        (
            config.monitor.track_memory and config.train.compile,
            "monitor.track_memory",
            "compiled blocks do not show their allocations; track without train.compile",
            "false",
        ),
        (
            config.monitor.memory_limit_gib is not None and not config.monitor.track_memory,
            "monitor.memory_limit_gib",
            "is held against what monitor.track_memory counts, which is off",
            "null",
        ),
        (
            any(weighted) and not all(weighted),
            f"dataset.paths.{weighted.index(False) if False in weighted else 0}.weight",
            "is missing, and other corpora of dataset.paths have one: give every corpus a weight, or none",
            "a number > 0",
        ),
        (
            any(entry.weight is not None for entry in data.eval_paths),
            "dataset.eval_paths",
            "held-out data is read once, every token of it: weights change nothing",
            "paths without weight",
        ),
        (first > last, "monitor.profile_steps", f"[{first}, {last}] ends before it starts", f"[{last}, {first}]"),
    )
    return [
        Violation(key_path=key, message=message, legal=(legal,)) for asked, key, message, legal in requests if asked
    ]


def _has_pretrained_weights(config: Config) -> bool:
    directory = config.model.pretrained_model_dir
    return directory is not None and has_weights(Path(directory))
