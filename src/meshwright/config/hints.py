"""What the writer of an unknown key or value probably meant."""

import difflib

from meshwright.config.fields import Section
from meshwright.config.keys import Key, keys
from meshwright.config.schema import Config

# Names that the same setting has elsewhere: Hugging Face, Megatron, DeepSpeed, torchtitan, MindFormers.
ELSEWHERE = {
    "lr": "optimizer.learning_rate",
    "max_lr": "optimizer.learning_rate",
    "bf16": "amp_config.dtype",
    "fp16": "amp_config.dtype",
    "precision": "amp_config.amp_level",
    "mixed_precision": "amp_config.amp_level",
    "batch_size": "train.micro_batch_size",
    "per_device_train_batch_size": "train.micro_batch_size",
    "local_batch_size": "train.micro_batch_size",
    "gradient_accumulation_steps": "parallel_config.micro_batch_num",
    "num_micro_batches": "parallel_config.micro_batch_num",
    "tensor_parallel": "parallel_config.model_parallel",
    "tensor_model_parallel_size": "parallel_config.model_parallel",
    "tp": "parallel_config.model_parallel",
    "pipeline_parallel": "parallel_config.pipeline_stage",
    "pipeline_model_parallel_size": "parallel_config.pipeline_stage",
    "pp": "parallel_config.pipeline_stage",
    "dp": "parallel_config.data_parallel",
    "cp": "parallel_config.context_parallel",
    "ep": "parallel_config.expert_parallel",
    "sequence_parallel": "parallel_config.use_seq_parallel",
    "optimizer_shard": "parallel_config.zero_stage",
    "enable_parallel_optimizer": "parallel_config.zero_stage",
    "max_steps": "train.train_steps",
    "steps": "train.train_steps",
    "num_train_epochs": "train.epochs",
    "max_seq_length": "train.seq_length",
    "seq_len": "train.seq_length",
    "max_grad_norm": "train.grad_clip",
    "clip_grad": "train.grad_clip",
    "gradient_checkpointing": "recompute_config.recompute",
    "activation_checkpointing": "recompute_config.recompute",
    "num_hidden_layers": "model.num_layers",
    "n_layers": "model.num_layers",
    "num_attention_heads": "model.num_heads",
    "num_key_value_heads": "model.num_kv_heads",
    "rms_norm_eps": "model.norm_eps",
    "warmup_iters": "lr_schedule.warmup_steps",
    "lr_scheduler_type": "lr_schedule.type",
    "save_steps": "checkpoint.save_checkpoint_steps",
    "save_total_limit": "checkpoint.keep_checkpoint_max",
    "resume_training": "checkpoint.resume",
    "logging_steps": "monitor.log_steps",
    "eod_reset": "dataset.isolate_documents",
    "reset_attention_mask": "dataset.isolate_documents",
    "reset_position_ids": "dataset.isolate_documents",
    "create_compressed_eod_mask": "dataset.isolate_documents",
    "num_workers": "dataset.num_parallel_workers",
    "lora": "pet_config",
    "runner_config": "train",
    "parallelism": "parallel_config",
    "training": "train",
    "data": "dataset",
    "lr_scheduler": "lr_schedule",
    "<<": "base_config",
}


def for_unknown_key(path: str, root: type[Section] = Config) -> str:
    """A hint for a key that does not exist: the right section, the right spelling, or the section's keys."""
    section, _, name = path.rpartition(".")
    known = keys(root)
    siblings = [key.name for key in known.values() if key.path.rpartition(".")[0] == _starred(section)]
    elsewhere = [key.path for key in known.values() if key.name == name and "*" not in key.path]
    if elsewhere and not (near := difflib.get_close_matches(name, siblings, 1, 0.85)):
        return f"it belongs to {' or '.join(elsewhere[:3])}"
    if ELSEWHERE.get(name) in known:
        return f"here it is called {ELSEWHERE[name]}"
    if near := difflib.get_close_matches(name, siblings, 1, 0.7):
        return f"did you mean {f'{section}.' if section else ''}{near[0]}?"
    names = {key.name: key.path for key in known.values() if "*" not in key.path}
    if near := difflib.get_close_matches(name, names, 1, 0.75):
        return f"did you mean {names[near[0]]}?"
    return f"{section or 'a config'} has {', '.join(siblings)}"


def for_value(key: Key, value: object) -> str:
    """A hint for a wrong value of a choice: the nearest legal word."""
    if not isinstance(value, str):
        return ""
    words = {choice.lower(): choice for choice in key.choices}
    shorthand = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "adam": "adamw"}
    if (full := shorthand.get(value.lower())) in key.choices:
        return f"did you mean {full}?"
    near = difflib.get_close_matches(value.lower(), words, 1, 0.6)
    if near:
        return f"did you mean {words[near[0]]}?"
    if "true or false" in key.expects and value.lower() in ("yes", "on", "no", "off"):
        return f"write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    return ""


def nearest(word: str, words: list[str]) -> str:
    """``did you mean X?`` for the nearest of some words, or the list of them."""
    near = difflib.get_close_matches(word, words, 1, 0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(words)}"


def _starred(section: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in section.split("."))
