"""From a config to a run and back: batch, model, refusals, the saved config and the one in the log."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.config.errors import ConfigErrors
from meshwright.config.load import load_config
from meshwright.config.run import (
    Run,
    config_from_log,
    config_hash,
    config_log_lines,
    resolve,
    resolved_yaml,
    smallest_world_size,
)
from meshwright.spec.model import ModelSpec, RopeScaling
from meshwright.spec.presets import PRESETS, preset
from meshwright.spec.training import Batch

TINY = """\
model: {num_layers: 4, hidden_size: 64, num_heads: 8, num_kv_heads: 2, intermediate_size: 160, vocab_size: 503}
train: {seq_length: 64}
"""
B08 = """\
model: {preset: llama2-7b}
parallel_config: {model_parallel: 2, pipeline_stage: 2, micro_batch_num: 8}
train: {seq_length: 2048, micro_batch_size: 1}
"""


def run(folder: Path, text: str, *overrides: str, world_size: int = 1) -> Run:
    path = folder / "c.yaml"
    path.write_text(text)
    return resolve(load_config(path, overrides), world_size)


def mistakes(folder: Path, text: str, *overrides: str, world_size: int = 1) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        run(folder, text, *overrides, world_size=world_size)
    return [str(error).removeprefix(f"{folder}/") for error in caught.value.errors]


def test_b08_two_batch_numbers_give_the_third(tmp_path: Path) -> None:
    resolved = run(tmp_path, B08, world_size=16)
    assert resolved.layout.data_parallel == 4
    assert resolved.train.batch == Batch(micro_batch_size=1, micro_batch_num=8, global_batch_size=32)
    fixed = ("train.global_batch_size=32", "parallel_config.micro_batch_num=null", "train.micro_batch_size=2")
    assert run(tmp_path, B08, *fixed, world_size=16).train.batch.micro_batch_num == 4


def test_b08_a_batch_that_does_not_divide_is_refused_with_its_neighbours(tmp_path: Path) -> None:
    cleared = ("train.global_batch_size=30", "parallel_config.micro_batch_num=null")
    (error,) = mistakes(tmp_path, B08, *cleared, world_size=16)
    assert error.startswith("command line: train.global_batch_size: 30 ")
    assert re.search(r"legal: .*28", error)
    assert re.search(r"legal: .*32", error)


def test_b08_three_numbers_that_disagree_are_refused_with_the_equation(tmp_path: Path) -> None:
    (error,) = mistakes(tmp_path, B08, "train.global_batch_size=64", world_size=16)
    assert "global_batch_size = micro_batch_size x data_parallel x micro_batch_num" in error


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        ((), (1, 1, 2)),
        (("train.micro_batch_size=3",), (3, 1, 6)),
        (("parallel_config.micro_batch_num=3",), (1, 3, 6)),
        (("train.global_batch_size=8",), (1, 4, 8)),
        (("train.global_batch_size=8", "parallel_config.micro_batch_num=2"), (2, 2, 8)),
    ],
)
def test_missing_batch_numbers_are_one(tmp_path: Path, given: tuple[str, ...], batch: tuple[int, int, int]) -> None:
    solved = run(tmp_path, TINY, *given, world_size=2).train.batch
    assert (solved.micro_batch_size, solved.micro_batch_num, solved.global_batch_size) == batch


def test_rules_are_told_at_the_line_of_their_key(tmp_path: Path) -> None:
    layout = "parallel_config:\n  pipeline_stage: 4\n  model_parallel: 16\n  zero_group_size: 3\n"
    errors = mistakes(tmp_path, f"model:\n  preset: llama3-8b\n{layout}", world_size=64)
    assert [error.split(": ")[:2] for error in errors] == [
        ["c.yaml:3:1", "parallel_config.micro_batch_num"],
        ["c.yaml:5:3", "parallel_config.model_parallel"],
        ["c.yaml:6:3", "parallel_config.zero_group_size"],
    ]
    assert "num_kv_heads 8" in errors[1]
    assert "legal: 8, 4, 2, 1" in errors[1]


def test_a_wrong_model_does_not_hide_the_other_mistakes(tmp_path: Path) -> None:
    text = "model: {preset: lama3-8b}\nparallel_config: {context_parallel: 2}\nrun_mode: finetune\npet_config: {}\n"
    errors = mistakes(tmp_path, text, world_size=2)
    assert [error.split(": ")[1] for error in errors] == [
        "model.preset",
        "parallel_config.context_parallel",
        "run_mode",
        "pet_config",
    ]
    assert "did you mean llama3-8b" in errors[0]


def test_devices_that_do_not_divide_do_not_hide_the_other_mistakes(tmp_path: Path) -> None:
    errors = mistakes(tmp_path, TINY + "parallel_config: {model_parallel: 4}\n", world_size=6)
    assert len(errors) == 2
    assert "6 devices are not a multiple of model_parallel 4" in errors[0] + errors[1]
    assert "num_kv_heads 2" in errors[0] + errors[1]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("pet_config={rank: 8}", "pet_config"),
        ("model.moe={num_experts: 8, experts_per_token: 2}", "model.moe"),
        ("parallel_config.shard={layers.*.mlp.up: columnwise}", "parallel_config.shard"),
        ("recompute_config.offload=true", "recompute_config.offload"),
        ("parallel_config.pipeline_schedule=zero_bubble", "parallel_config.pipeline_schedule"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_with_the_nearest(tmp_path: Path, override: str, key: str) -> None:
    (error,) = mistakes(tmp_path, TINY, override)
    assert error.startswith(f"command line: {key}: ")
    assert "not supported" in error
    assert "legal: " in error


def test_a_profile_that_ends_before_it_starts_is_refused(tmp_path: Path) -> None:
    (error,) = mistakes(tmp_path, TINY, "monitor.profile_steps=[9, 4]")
    assert error.endswith("monitor.profile_steps: [9, 4] ends before it starts; legal: [4, 9]")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("monitor.memory_limit_gib=2",), "monitor.memory_limit_gib: is held against what monitor.track_memory counts"),
        (("monitor.track_memory=true", "train.compile=true"), "monitor.track_memory: compiled blocks do not show"),
    ],
)
def test_tracked_memory_needs_what_can_be_tracked(tmp_path, overrides, told):
    (error,) = mistakes(tmp_path, TINY, *overrides)
    assert told in error


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("dataset.paths=[{path: a, weight: 1}, b]", "dataset.paths.1.weight: is missing, and other corpora"),
        ("dataset.eval_paths=[{path: a, weight: 1}]", "dataset.eval_paths: held-out data is read once"),
    ],
)
def test_weights_that_mean_nothing_are_refused(tmp_path: Path, override: str, expected: str) -> None:
    (error,) = mistakes(tmp_path, TINY, override)
    assert expected in error


def test_two_lengths_are_refused_until_one_is_cleared(tmp_path: Path) -> None:
    base = TINY.replace("seq_length: 64", "seq_length: 64, train_steps: 10")
    (error,) = mistakes(tmp_path, base, "train.train_tokens=1e6")
    assert "train_steps, train_tokens" in error
    tokens = run(tmp_path, base, "train.train_tokens=1e6", "train.train_steps=null").train.duration
    assert (tokens.train_steps, tokens.train_tokens) == (None, 1_000_000)


def test_sizes_on_top_of_a_preset(tmp_path: Path) -> None:
    small = run(tmp_path, "model: {preset: llama2-7b, hidden_size: 1024, num_heads: 16, num_layers: 2}\n").model
    assert (small.head_dim, small.num_kv_heads) == (64, 16), "both follow the heads, as in the preset"
    assert small == replace(
        PRESETS["llama2-7b"], hidden_size=1024, num_heads=16, num_layers=2, head_dim=64, num_kv_heads=16
    )
    own = run(tmp_path, "model: {preset: qwen3-0.6b, hidden_size: 2048}\n").model
    assert own.head_dim == 128, "a head_dim that is no quotient stays"
    window = run(tmp_path, "model: {preset: mistral-7b-v0.1, sliding_window: null}\n").model
    assert window.sliding_window is None
    assert preset("mistral-7b-v0.1").sliding_window == 4096
    text = (
        "model: {preset: llama3.1-8b, rope_scaling: {type: linear, factor: 4, original_max_position_embeddings: 10}}\n"
    )
    scaling = run(tmp_path, text).model.rope_scaling
    assert scaling == RopeScaling(type="linear", factor=4.0, original_max_position_embeddings=10)


def test_sizes_alone(tmp_path: Path) -> None:
    expected = ModelSpec(
        num_layers=4,
        hidden_size=64,
        num_heads=8,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=160,
        vocab_size=503,
    )
    assert run(tmp_path, TINY).model == expected
    (missing,) = mistakes(tmp_path, "model: {num_layers: 2, hidden_size: 64}\n")
    assert missing.startswith("c.yaml:1:1: model: no preset")
    assert "num_heads, intermediate_size, vocab_size must be given" in missing
    (uneven,) = mistakes(tmp_path, TINY, "model.hidden_size=68")
    assert "hidden_size 68 is not a multiple of num_heads 8; give model.head_dim" in uneven


def test_a_hugging_face_directory_gives_the_sizes(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 3,
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "intermediate_size": 200,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    resolved = run(tmp_path, f"model: {{pretrained_model_dir: {tmp_path}, num_layers: 2}}\n")
    assert (resolved.model.num_layers, resolved.model.head_dim, resolved.model.norm_eps) == (2, 16, 1e-6)
    assert str(resolved.origin("model.vocab_size")) == f"{tmp_path}/config.json"
    (tmp_path / "config.json").unlink()
    (saved := tmp_path / "saved.yaml").write_text(resolved_yaml(resolved))
    assert resolve(load_config(saved), 1).model == resolved.model, "the saved run needs the directory no more"
    (gone,) = mistakes(tmp_path, f"model: {{pretrained_model_dir: {tmp_path}}}\n")
    assert "model.pretrained_model_dir" in gone
    both = mistakes(tmp_path, f"model: {{preset: llama2-7b, pretrained_model_dir: {tmp_path}}}\n")
    assert "keep one" in both[0]


def test_finetune_insists_on_weights(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 64, **sizes}))
    text = f"model: {{pretrained_model_dir: {tmp_path / 'model'}}}\nrun_mode: finetune\n"
    (refused,) = mistakes(tmp_path, text)
    assert "run_mode" in refused
    assert "holds some" in refused
    (tmp_path / "model" / "model.safetensors").touch()
    resolved = run(tmp_path, text)
    assert resolved.config.model.pretrained_model_dir == str(tmp_path / "model")
    (saved := tmp_path / "saved.yaml").write_text(resolved_yaml(resolved))
    assert resolved_yaml(resolve(load_config(saved), 1)) == resolved_yaml(resolved)


@pytest.mark.parametrize("name", list(PRESETS))
def test_the_saved_config_repeats_the_run(tmp_path: Path, name: str) -> None:
    text = f"model: {{preset: {name}}}\noptimizer: {{learning_rate: 1e-5, eps: 1e-12}}\nseed: 7\n"
    first = run(tmp_path, text, "train.micro_batch_size=3", "lr_schedule.warmup_ratio=0.1", world_size=4)
    (saved := tmp_path / "saved.yaml").write_text(resolved_yaml(first))
    again = resolve(load_config(saved), 4)
    assert (again.model, again.layout, again.train, again.config) == (
        first.model,
        first.layout,
        first.train,
        first.config,
    )
    assert resolved_yaml(again) == resolved_yaml(first)
    assert config_hash(again) == config_hash(first)


LIKE_OTHER_TYPES = ["1e-4", "yes", "~", "null", "010", "1:30", "''"]
LIKE_SYNTAX = ["a: b", "# x", "{x}", "- x", "two\nlines", "tab\there", "\u00e9t\u00e9", "a\u2028b"]


@pytest.mark.parametrize("word", [*LIKE_OTHER_TYPES, *LIKE_SYNTAX])
def test_awkward_words_survive_saving_and_the_log(tmp_path: Path, word: str) -> None:
    text = TINY + f"output_dir: {json.dumps(word)}\ndataset: {{paths: [{json.dumps(word)}]}}\n"
    resolved = run(tmp_path, text)
    assert resolved.config.output_dir == word
    saved = resolved_yaml(resolved)
    path = tmp_path / "saved.yaml"
    path.write_text(config_from_log("\n".join(config_log_lines(resolved))))
    assert path.read_text() == saved
    again = load_config(path).config
    assert (again.output_dir, again.dataset.paths[0].path) == (word, word)


def test_the_hash_is_of_the_run_and_not_of_its_place(tmp_path: Path) -> None:
    first = config_hash(run(tmp_path, TINY))
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert config_hash(run(tmp_path, TINY, "output_dir=elsewhere")) == first
    written_out = ("train.micro_batch_size=1", "parallel_config.data_parallel=1", "model.head_dim=8")
    assert config_hash(run(tmp_path, TINY, *written_out)) == first
    assert config_hash(run(tmp_path, TINY, "seed=2")) != first


def test_the_log_gives_the_config_back_through_prefixes_and_other_ranks(tmp_path: Path) -> None:
    resolved = run(tmp_path, TINY, "output_dir=runs/a|b config| c")
    old = run(tmp_path, TINY, "seed=99")
    noise = [f"[rank 0] 2026-11-29 23:00:{i:03d} INFO {line}" for i, line in enumerate(config_log_lines(old))]
    for i, line in enumerate(config_log_lines(resolved)):
        noise += [f"\x1b[32m[rank 0]\x1b[0m {'1' * (i % 7)} {line}\r", f"[rank 1] step {i} loss 2.0"]
    assert config_from_log("\n".join(noise)) == resolved_yaml(resolved)


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    lines = config_log_lines(run(tmp_path, TINY))
    with pytest.raises(ConfigErrors, match="holds no resolved config"):
        config_from_log("step 1\nstep 2\n")
    with pytest.raises(ConfigErrors, match="end is missing"):
        config_from_log("\n".join(lines[:-1]))
    with pytest.raises(ConfigErrors, match="checksum does not match"):
        config_from_log("\n".join([*lines[:5], *lines[6:]]))


@pytest.mark.parametrize(
    ("override", "world_size"),
    [
        ("seed=1", 1),
        ("parallel_config.data_parallel=6", 6),
        ("parallel_config={model_parallel: 2, pipeline_stage: 4}", 8),
        ("parallel_config={zero_stage: 3, zero_group_size: 4}", 4),
    ],
)
def test_the_smallest_run_that_a_layout_allows(tmp_path: Path, override: str, world_size: int) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(TINY)
    assert smallest_world_size(load_config(path, [override]).config) == world_size


def test_the_smallest_run_agrees_with_a_whole_batch_equation(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(TINY)
    batch = ("train.micro_batch_size=2", "train.global_batch_size=24", "parallel_config.micro_batch_num=3")
    assert smallest_world_size(load_config(path, [*batch, "parallel_config.model_parallel=2"]).config) == 8
