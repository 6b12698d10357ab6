"""What is told before any worker starts: one message for each mistake."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from meshwright.config.load import load_config
from meshwright.config.run import Run, resolve
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loss_mask import MaskWriter
from meshwright.data.preparation.prepare import prepare
from meshwright.parallel.devices import KINDS
from meshwright.parallel.precision import formats
from meshwright.train import checkpointing, space, start
from meshwright.train.inputs import find_start, train_dataset
from meshwright.train.preflight import check
from meshwright.train.start import start_lines

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "vocab_size": 97}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    with IndexedWriter(tmp_path / "train", vocab_size=97) as writer:
        writer.add_document(np.arange(400) % 97)
    return tmp_path / "train"


def make(folder: Path, *overrides: str, world_size: int = 1, **sections: Any) -> Run:
    values = {
        "output_dir": str(folder / "out"),
        "model": MODEL,
        "train": {"seq_length": 16, "global_batch_size": 4, "micro_batch_size": 1, "train_steps": 3},
        "dataset": {"paths": [str(folder / "train")]},
        **sections,
    }
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(values))
    return resolve(load_config(path, overrides), world_size)


def save_checkpoint(run: Run, root: Path, tensors: Any = ()) -> Path:
    from meshwright.checkpoint.store import save

    counters = checkpointing.Counters(step=3, tokens=192)
    state = checkpointing.run_state(run, "a", counters, train_dataset(run).fingerprint())
    return save(root, 3, tensors=dict(tensors), state=state, rank_state={}, run_id="a")


@pytest.mark.usefixtures("corpus")
def test_a_run_that_can_start_has_no_messages(tmp_path):
    assert check(make(tmp_path), kind=KINDS["cpu"]) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("corpus")
def test_memory_is_tracked_on_cpus_only(tmp_path):
    run = make(tmp_path, monitor={"track_memory": True})
    assert check(run, kind=KINDS["cpu"]) == []
    assert any("monitor.track_memory: is for CPUs" in message for message in check(run, kind=KINDS["npu"]))


def test_a_missing_corpus_is_named(tmp_path):
    (message,) = check(make(tmp_path), kind=KINDS["cpu"])
    assert str(tmp_path / "train") in message


def test_a_corpus_too_short_for_one_sample_is_refused(tmp_path, corpus):
    (message,) = check(make(tmp_path, "train.seq_length=1024"), kind=KINDS["cpu"])
    assert message == f"{corpus}: 400 tokens, too few for one sample: seq_length 1024 needs at least 1025"


@pytest.mark.usefixtures("corpus")
def test_a_missing_held_out_corpus_is_named(tmp_path):
    (message,) = check(make(tmp_path, f"dataset.eval_paths=[{tmp_path / 'gone'}]"), kind=KINDS["cpu"])
    assert str(tmp_path / "gone") in message


def prepared(folder: Path, name: str, vocab_size: int, **options: Any) -> Path:
    """A corpus with a tokenizer of its own, or with the one in ``options``."""
    (folder / f"{name}.jsonl").write_text(json.dumps({"text": "the herons come when the river is low " * 20}))
    options = options or {"train_vocab_size": vocab_size}
    prepare([folder / f"{name}.jsonl"], folder / name, eval_fraction=0, **options)
    return folder / name


def test_corpora_of_different_tokenizers_are_refused(tmp_path, corpus):
    first, other = prepared(tmp_path, "first", 260), prepared(tmp_path, "other", 264)
    same = prepared(tmp_path, "same", 0, tokenizer=tmp_path / "first.tokenizer.json")
    model = {**MODEL, "vocab_size": 512}

    def told(**dataset: Any) -> list[str]:
        return check(make(tmp_path, model=model, dataset=dataset), kind=KINDS["cpu"])

    assert told(paths=[str(first), str(same), str(corpus)], tokenizer=f"{same}.tokenizer.json") == []
    refusal = (
        f"dataset: {first} and {other} were made with different tokenizers, {first}.tokenizer.json and"
        f" {other}.tokenizer.json: the same id is other text in each; prepare {other} anew with --tokenizer"
        f" {first}.tokenizer.json"
    )
    assert told(paths=[str(corpus), str(first), str(other)]) == [refusal]
    assert told(paths=[f"{first}.bin"], eval_paths=[str(other)]) == [refusal]
    other.with_suffix(".json").unlink()  # as data import leaves it: the tokenizer itself is there
    assert told(paths=[str(first), str(other)]) == [refusal]


def test_a_tokenizer_that_did_not_make_the_data_is_refused(tmp_path, corpus):
    first, other = prepared(tmp_path, "first", 260), prepared(tmp_path, "other", 264)
    model = {**MODEL, "vocab_size": 512}

    def told(tokenizer: Path, *paths: Path) -> str:
        dataset = {"paths": [str(path) for path in paths], "tokenizer": str(tokenizer)}
        return "".join(check(make(tmp_path, model=model, dataset=dataset), kind=KINDS["cpu"]))

    gone, wrong = tmp_path / "gone.json", Path(f"{other}.tokenizer.json")
    assert told(gone, first) == (
        f"dataset.tokenizer: {gone}: no such file; the one of {first} is {first}.tokenizer.json"
    )
    assert told(gone, corpus) == f"dataset.tokenizer: {gone}: no such file"
    assert told(wrong, corpus, first) == (
        f"dataset.tokenizer: {wrong} is not what {first} was made with, so its ids would be other text; name"
        f" {first}.tokenizer.json, or prepare the data anew with --tokenizer {wrong}"
    )
    assert told(wrong, corpus) == ""


@pytest.mark.usefixtures("corpus")
def test_evaluation_without_held_out_data_is_refused(tmp_path):
    assert check(make(tmp_path, "train.eval_steps=2"), kind=KINDS["cpu"]) == [
        "train.eval_steps is set, but dataset.eval_paths names no held-out data"
    ]


@pytest.mark.usefixtures("corpus")
def test_a_run_without_a_step_is_refused_with_the_arithmetic(tmp_path):
    run = make(tmp_path, "train.train_steps=null", "train.epochs=0.1")
    (message,) = check(run, kind=KINDS["cpu"])
    assert message.startswith("train: the run has no step to make: epochs 0.1 x 24 samples / global_batch_size 4")


@pytest.mark.usefixtures("corpus")
def test_an_output_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    assert check(make(tmp_path), kind=KINDS["cpu"]) == [f"output_dir: {tmp_path / 'out'} is a file"]


@pytest.mark.usefixtures("corpus")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_dir_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "shut").mkdir(mode=0o500)
    run = make(tmp_path, f"output_dir={tmp_path / 'shut' / 'deep' / 'out'}")
    assert check(run, kind=KINDS["cpu"]) == [f"output_dir: {tmp_path / 'shut'} is not writable"]


def test_a_checkpoint_larger_than_the_disk_is_refused(tmp_path):
    with IndexedWriter(tmp_path / "train", vocab_size=128256) as writer:
        writer.add_document(np.arange(400))
    # 1,000 layers of the widest public model: no disk holds it.
    run = make(tmp_path, model={"preset": "llama3.1-405b", "num_layers": 1_000})
    (message,) = check(run, kind=KINDS["cpu"])
    assert message.startswith("output_dir: checkpoints will need about 34.8 TiB more (1 x 34.8 TiB at once: ")
    assert f", {tmp_path} has " in message
    assert message.endswith(" free; choose another output_dir")


@pytest.mark.usefixtures("corpus")
def test_space_is_that_of_all_checkpoints_there_at_once_less_those_already_there(tmp_path, monkeypatch):
    # 25,760 parameters (vocabulary padded to 128 rows) of 12 bytes.
    run = make(tmp_path, "train.train_steps=100", "checkpoint.save_checkpoint_steps=10")
    size = space.checkpoint_bytes(run)
    assert size == 309_120

    def messages_with(free: int, *overrides: str) -> list[str]:
        monkeypatch.setattr(space, "free_bytes", lambda path: free)
        common = ("train.train_steps=100", "checkpoint.save_checkpoint_steps=10")
        return check(make(tmp_path, *common, *overrides), kind=KINDS["cpu"])

    assert messages_with(4 * size) == []
    assert messages_with(4 * size - 1) == [
        "output_dir: checkpoints will need about 1.2 MiB more (4 x 301.9 KiB at once: 10 saves to come, "
        f"keep_checkpoint_max 3 and the one being written), {tmp_path} has 1.2 MiB free; "
        "checkpoint.keep_checkpoint_max=2 fits"
    ]
    assert messages_with(2 * size, "train.train_steps=20") == []
    assert messages_with(4 * size - 1, "checkpoint.keep_checkpoint_max=2") == []
    assert messages_with(2 * size, "amp_config.amp_level=O3") == []
    held = save_checkpoint(run, tmp_path / "out" / "checkpoints", {"w": torch.zeros(size // 4)})
    assert sum(file.stat().st_size for file in held.rglob("*")) > size
    assert messages_with(3 * size) == []
    (message,) = messages_with(3 * size - 20_000)
    assert "4 x 301.9 KiB at once: 10 saves to come" in message


@pytest.mark.usefixtures("corpus")
def test_more_ranks_than_devices_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    run = make(tmp_path, "train.global_batch_size=64", world_size=64)
    (message,) = check(run, kind=KINDS["cuda"])
    assert message.startswith("64 ranks on this node, but it has")
    assert message.endswith("cuda devices")


@pytest.mark.usefixtures("corpus")
def test_checkpoints_are_checked_before_workers_start(tmp_path):
    run = make(tmp_path)
    path = save_checkpoint(run, tmp_path / "out" / "checkpoints")
    assert check(run, kind=KINDS["cpu"]) == []
    (refused,) = check(make(tmp_path, "checkpoint.resume=never"), kind=KINDS["cpu"])
    assert refused.startswith("checkpoint.resume is never, but")
    (other,) = check(make(tmp_path, "seed=2"), kind=KINDS["cpu"])
    assert f"{path} is a checkpoint of another run" in other
    assert "seed: checkpoint 1, this run 2" in other
    (missing,) = check(make(tmp_path, f"checkpoint.resume={tmp_path / 'gone'}"), kind=KINDS["cpu"])
    assert str(tmp_path / "gone") in missing


def test_every_mistake_is_told_at_once(tmp_path):
    (tmp_path / "out").write_text("")
    run = make(tmp_path, "train.global_batch_size=64", world_size=64)
    messages = check(run, kind=KINDS["cuda"])
    assert len(messages) == 3


@pytest.mark.usefixtures("corpus")
def test_a_run_with_damaged_checkpoints_only_is_not_started_anew(tmp_path):
    run = make(tmp_path)
    path = save_checkpoint(run, tmp_path / "out" / "checkpoints")
    (path / "state.json").write_text("")
    (message,) = check(run, kind=KINDS["cpu"])
    assert "none is complete" in message
    assert f"{path}: " in message
    assert "state.json" in message


@pytest.mark.usefixtures("corpus")
def test_an_interrupted_first_save_does_not_keep_a_run_from_starting(tmp_path):
    run = make(tmp_path)
    partial = tmp_path / "out" / "checkpoints" / ".step-00000003.partial"
    partial.mkdir(parents=True)
    assert check(run, kind=KINDS["cpu"]) == []
    start = find_start(run, train_dataset(run).fingerprint())
    assert start.resume is None
    assert start.passed_over == (f"{partial}: the save was interrupted before it was complete",)


@pytest.mark.usefixtures("corpus")
def test_a_run_says_what_is_supervised_what_is_read_twice_and_that_its_workers_are_too_many(tmp_path, monkeypatch):
    with IndexedWriter(tmp_path / "chat", vocab_size=97, beside=MaskWriter) as writer:
        ids = np.arange(400) % 97
        writer.add_document(ids, np.where(np.arange(400) % 4 == 0, ids, -100))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(start, "usable_cores", lambda: 5)

    def told(**dataset: Any) -> str:
        run = make(tmp_path, dataset=dataset)
        return "\n".join(
            start_lines(run, formats(run.train.precision, KINDS["cpu"]), KINDS["cpu"], train_dataset(run), 3)
        )

    plain = told(paths=[str(tmp_path / "train")], num_parallel_workers=2)
    assert "data: 24 samples of 16 tokens\n" in plain + "\n"
    assert "warning" not in plain
    masked = told(paths=[str(tmp_path / "chat")], num_parallel_workers=3)
    assert "data: 24 samples of 16 tokens, 25.0% of the tokens supervised by loss masks\n" in masked
    twice = told(paths=[str(tmp_path / "train")], eval_paths=[str(tmp_path / "train.bin")])
    assert f"warning: dataset.eval_paths: {tmp_path / 'train'}: also in dataset.paths" in twice
    warning = (
        "warning: dataset.num_parallel_workers: 3 for each of 2 ranks on one machine are more processes than the 5"
    )
    assert warning in masked
    blended = told(paths=[{"path": str(tmp_path / name), "weight": 1} for name in ("train", "chat")])
    assert "train: 50.00%, 6 samples of 24, 0.25 epochs\n" in blended
    assert "chat: 50.00%, 6 samples of 24, 0.25 epochs, 25.0% of the tokens supervised by loss masks" in blended
