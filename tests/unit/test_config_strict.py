"""B-25: strict keys, typed values, all mistakes at once, each with file, line, key and a hint."""

from pathlib import Path
from typing import Any

import pytest

from meshwright.config.errors import ConfigErrors
from meshwright.config.load import load_config

B25 = """\
learning_rate: 1e-4
optimizer:
  learnig_rate: 1e-4
bf16: "no"
seed: 1
seed: 2
train:
  seq_length: 4096.5
amp_config:
  dtype: true
"""


def value(folder: Path, text: str, section: str, key: str) -> Any:
    path = folder / "c.yaml"
    path.write_text(text)
    return getattr(getattr(load_config(path).config, section), key)


def told(folder: Path, text: str) -> list[str]:
    path = folder / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigErrors) as caught:
        load_config(path)
    return [str(error).removeprefix(f"{folder}/") for error in caught.value.errors]


@pytest.mark.parametrize("written", ["1e-4", "1.0e-4", '"1e-4"', "1E-4", "0.0001", "'1.0e-4'", ".0001"])
def test_b25_a_learning_rate_is_a_number_however_it_is_written(tmp_path: Path, written: str) -> None:
    read = value(tmp_path, f"optimizer:\n  learning_rate: {written}\n", "optimizer", "learning_rate")
    assert read == 0.0001
    assert type(read) is float


def test_b25_every_other_case_is_refused_at_once(tmp_path: Path) -> None:
    assert told(tmp_path, B25) == [
        "c.yaml:1:1: learning_rate: unknown key; it belongs to optimizer.learning_rate",
        "c.yaml:3:3: optimizer.learnig_rate: unknown key; did you mean optimizer.learning_rate?",
        "c.yaml:4:1: bf16: unknown key; here it is called amp_config.dtype",
        "c.yaml:6:1: seed: the key stands twice, first on line 5; keep one of them",
        "c.yaml:8:3: train.seq_length: must be a whole number >= 1, not 4096.5",
        "c.yaml:10:3: amp_config.dtype: must be one of auto, float32, bfloat16, float16, not true",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learnig_rate: 1\n", "c.yaml:1:1: learnig_rate: unknown key; did you mean optimizer.learning_rate?"),
        ("lr: 1e-4\n", "c.yaml:1:1: lr: unknown key; here it is called optimizer.learning_rate"),
        ("micro_batch_num: 4\n", "it belongs to parallel_config.micro_batch_num"),
        ("train: {micro_batch_num: 4}\n", "it belongs to parallel_config.micro_batch_num"),
        ("train: {zero: 4}\n", "train has seq_length, micro_batch_size"),
        ("parallel_confg: {}\n", "did you mean parallel_config?"),
        ("parallel_config: {tp: 4}\n", "here it is called parallel_config.model_parallel"),
        ("<<: {seed: 1}\n", "here it is called base_config"),
        ("amp_config: {dtype: bf16}\n", "did you mean bfloat16?"),
        ("amp_config: {amp_level: o2}\n", "did you mean O2?"),
        ("lr_schedule: {type: cosin}\n", "did you mean cosine?"),
        ("monitor: {tensorboard: yes}\n", 'must be true or false, not "yes"; write true'),
        ("monitor: {tensorboard: 1}\n", "must be true or false, not 1"),
        ("parallel_config: {zero_stage: true}\n", "must be a whole number >= 0 and <= 3, not true"),
        ("parallel_config: {zero_stage: 1.0}\n", "must be a whole number >= 0 and <= 3, not 1.0"),
        ("parallel_config: {data_parallel: many}\n", 'must be auto or a whole number >= 1, not "many"'),
        ("train: {seq_length: '4096'}\n", 'must be a whole number >= 1, not "4096"'),
        ("train: {seq_length: true}\n", "must be a whole number >= 1, not true"),
        ("train: {train_tokens: 1.5}\n", "must be a whole number >= 1 or null, not 1.5"),
        ("optimizer: {learning_rate: .nan}\n", "must be a number > 0, not nan"),
        ("optimizer: {learning_rate: fast}\n", 'must be a number > 0, not "fast"'),
        ("optimizer: {betas: [0.9]}\n", "must be a list of 2 values, each a number >= 0 and < 1, not [0.9]"),
        ("recompute_config: {recompute: [0, x]}\n", "recompute_config.recompute.1: must be true or false or a list"),
        ("dataset: {paths: [{weight: 1}]}\n", "c.yaml:1:19: dataset.paths.0.path: is missing"),
        ("dataset: {paths: corpus}\n", "must be a list of paths or {path, weight}"),
        ("dataset: {timeout_s: 1e10}\n", "dataset.timeout_s: must be a number > 0 and <= 100000, not 1"),
        ("train: [1]\n", "train: must be a section (a mapping of keys), not [1]"),
        ("output_dir: 5\n", "output_dir: must be text, not 5"),
    ],
)
def test_each_mistake_is_told_once_with_a_hint(tmp_path: Path, text: str, expected: str) -> None:
    (error,) = told(tmp_path, text)
    assert expected in error
    assert error.startswith("c.yaml:1:")


@pytest.mark.parametrize(
    ("text", "section", "key", "expected"),
    [
        ("train: {train_tokens: 2e9}", "train", "train_tokens", 2_000_000_000),
        ("train: {train_steps: 1_000}", "train", "train_steps", 1000),
        ("train: {seq_length: 010}", "train", "seq_length", 10),
        ("train: {grad_clip: 1}", "train", "grad_clip", 1.0),
        ("amp_config: {loss_scale: 1024}", "amp_config", "loss_scale", 1024.0),
        ("recompute_config: {recompute: [0, 2]}", "recompute_config", "recompute", (0, 2)),
        ("recompute_config: {recompute: true}", "recompute_config", "recompute", True),
        ("dataset: {tokenizer: no}", "dataset", "tokenizer", "no"),
        ("dataset: {tokenizer: 1:30}", "dataset", "tokenizer", "1:30"),
        ("dataset: {tokenizer: 2026-11-29}", "dataset", "tokenizer", "2026-11-29"),
    ],
)
def test_values_are_what_they_look_like(tmp_path: Path, text: str, section: str, key: str, expected: Any) -> None:
    read = value(tmp_path, f"{text}\n", section, key)
    assert (read, type(read)) == (expected, type(expected))


def test_configs_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("seed: 1\n")
    config = load_config(path).config
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 2
