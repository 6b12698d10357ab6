"""Advice with reasons, and what a difference between two runs means."""

from pathlib import Path

import pytest

from meshwright.config.advice import advise
from meshwright.config.diff import differences, notices
from meshwright.config.load import load_config
from meshwright.config.run import Run, resolve

SOUND = """\
model: {preset: llama-2m}
train: {seq_length: 256, global_batch_size: 64, train_steps: 2000}
parallel_config: {zero_stage: 1}
amp_config: {amp_level: O2}
dataset: {paths: [data/a], eval_paths: [data/b], num_parallel_workers: 1}
"""


def told(folder: Path, *overrides: str, world_size: int = 8, cores: int | None = 16) -> dict[str, str]:
    (folder / "c.yaml").write_text(SOUND)
    loaded = load_config(folder / "c.yaml", overrides)
    return {item.key: item.message for item in advise(resolve(loaded, world_size), loaded.config, cores=cores)}


def test_a_sound_config_gets_no_advice(tmp_path: Path) -> None:
    assert told(tmp_path) == {}


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (
            ["parallel_config.pipeline_stage=4", "parallel_config.micro_batch_num=4"],
            "parallel_config.micro_batch_num",
            "4 micro-batches leave 4 stages idle 43% of the time; 2-4 x the stages (8-16) brings it to 27% or less",
        ),
        (
            ["model.num_layers=5", "parallel_config.pipeline_stage=2"],
            "parallel_config.pipeline_stage",
            "5 layers over 2 stages are uneven",
        ),
        (["parallel_config.pipeline_stage=2", "parallel_config.zero_stage=3"], "parallel_config.zero_stage", "gathers"),
        (["parallel_config.zero_stage=0"], "parallel_config.zero_stage", "on each of 8 ranks"),
        (["parallel_config.model_parallel=2"], "parallel_config.use_seq_parallel", "for the same traffic"),
        (
            ["parallel_config.model_parallel=2", "parallel_config.mesh_order=[model, data, pipeline, context]"],
            "parallel_config.mesh_order",
            "slower links",
        ),
        (["dataset.paths=[data/a, ./data/a]"], "dataset.paths", "data/a: named more than once"),
        (["dataset.eval_paths=[data/a/]"], "dataset.eval_paths", "data/a: also in dataset.paths"),
        (["dataset.eval_paths=[data/a.idx]"], "dataset.eval_paths", "data/a: also in dataset.paths"),
        (["train.global_batch_size=null"], "train.global_batch_size", "grows with the number of devices"),
        (["train.seq_length=2048"], "train.seq_length", "longer than the model's max_position_embeddings 1024"),
        (["checkpoint.save_checkpoint_steps=5000"], "checkpoint.save_checkpoint_steps", "nothing is saved before"),
        (["checkpoint.save_checkpoint_steps=1"], "checkpoint.save_checkpoint_steps", "2000 checkpoints in 2000 steps"),
        (["lr_schedule.warmup_steps=2000"], "lr_schedule.warmup_steps", "end before the peak"),
        (["amp_config.amp_level=O0"], "amp_config.amp_level", "O2 is several times faster"),
        (["amp_config.dtype=float16", "amp_config.loss_scale=null"], "amp_config.loss_scale", "vanish"),
        (
            ["recompute_config={recompute: true, select_recompute: [attention]}"],
            "recompute_config.select_recompute",
            "no effect",
        ),
        (
            ["recompute_config={recompute: false, select_recompute: [matmul]}"],
            "recompute_config.select_recompute",
            "more memory than recomputing nothing",
        ),
        (["model.preset=qwen3-8b", "train.seq_length=8192"], "train.loss_chunk_tokens", "2.3 GiB in 16 bits"),
        (["dataset.paths=[]"], "dataset.paths", "names no data"),
        (["train.eval_steps=10", "dataset.eval_paths=[]"], "train.eval_steps", "no effect"),
        (["dataset.num_parallel_workers=4"], "dataset.num_parallel_workers", "4 for each of 8 ranks"),
    ],
)
def test_each_advice_comes_with_its_reason(tmp_path: Path, overrides: list[str], key: str, reason: str) -> None:
    assert reason in told(tmp_path, *overrides)[key]


def test_tensor_parallel_across_machines_is_advised_against(tmp_path: Path) -> None:
    wide = ("model={preset: llama2-7b}", "parallel_config={model_parallel: 16, zero_stage: 1}")
    assert "16 ranks exchange activations" in told(tmp_path, *wide, world_size=16)["parallel_config.model_parallel"]


def test_workers_are_not_counted_against_unknown_cores(tmp_path: Path) -> None:
    assert told(tmp_path, "dataset.num_parallel_workers=99", cores=None) == {}


def run(folder: Path, *overrides: str, world_size: int = 16) -> Run:
    path = folder / "d.yaml"
    path.write_text(
        "model: {preset: llama2-7b}\nparallel_config: {model_parallel: 2, pipeline_stage: 2, micro_batch_num: 8}\n"
        "train: {micro_batch_size: 1}\n"
    )
    return resolve(load_config(path, overrides), world_size)


def test_b08_a_doubled_batch_under_one_learning_rate_is_noticed(tmp_path: Path) -> None:
    before, after = run(tmp_path), run(tmp_path, "train.micro_batch_size=2")
    assert [str(item) for item in differences(before, after)] == [
        "train.micro_batch_size: 1 -> 2",
        "train.global_batch_size: 32 -> 64",
    ]
    (notice,) = notices(before, after)
    assert "from 32 to 64" in notice
    assert "linear scaling would be 0.0006" in notice


def test_no_notice_when_the_learning_rate_was_thought_of(tmp_path: Path) -> None:
    after = run(tmp_path, "train.micro_batch_size=2", "optimizer.learning_rate=6e-4")
    assert notices(run(tmp_path), after) == []
    assert notices(run(tmp_path), run(tmp_path, "seed=2")) == []


def test_a_run_does_not_differ_from_itself_written_out(tmp_path: Path) -> None:
    assert differences(run(tmp_path), run(tmp_path, "parallel_config.data_parallel=4", "model.head_dim=128")) == []
