"""Runs that keep documents apart, from the token files to the text of a trained model (B-23)."""

from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meshwright.data.dataset import TokenDataset
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.loss_mask import IGNORED
from meshwright.parallel.devices import KINDS
from meshwright.train.evaluate import Evaluation, evaluate
from meshwright.train.generate import generate
from meshwright.train.inference import load_model
from meshwright.train.inputs import ResumeError
from ranks import run_ranks
from trainer_runs import SEQ_LENGTH, VOCAB, by_step, metrics, ranks_of, train, write_config

EOS = 0


def go(folder: Path, layout: str, *overrides: str, **sections: Any) -> None:
    run_ranks(train, ranks_of(layout), write_config(folder, layout, **sections), overrides)


def write_documents(prefix: Path, number: int, seed: int) -> Path:
    """Short documents: most samples hold several, and some documents are cut."""
    random = np.random.default_rng(seed)
    with IndexedWriter(prefix, vocab_size=VOCAB) as writer:
        for _ in range(number):
            tokens = 1 + np.cumsum(random.integers(1, 4, random.integers(1, 20))) % (VOCAB - 1)
            writer.add_document(np.array([*tokens, EOS]))
    return prefix


def judged(checkpoint: Path, held_out: Path) -> Evaluation:
    loaded = load_model(checkpoint, kind=KINDS["cpu"], device=torch.device("cpu"))
    assert loaded.run.train.isolate_documents
    data = TokenDataset([held_out], SEQ_LENGTH, pad_last=True, isolate_documents=True)
    return evaluate(loaded.model, data, batch_size=3)


def test_isolated_runs_are_one_run_on_every_layout(tmp_path: Path) -> None:
    """Blended, with worker processes, evaluation in between, and a resume on another layout."""
    paths = [{"path": str(write_documents(tmp_path / f"part{n}", 80 * n, seed=n)), "weight": 3 - n} for n in (1, 2)]
    held_out = write_documents(tmp_path / "apart", 30, seed=3)
    sections = {
        "train": {"train_steps": 6, "eval_steps": 3},
        "lr_schedule": {"type": "constant"},
        "checkpoint": {"save_checkpoint_steps": 3},
        "dataset": {"paths": paths, "eval_paths": [str(held_out)], "isolate_documents": True},
    }
    names = ("train/loss", "train/grad_norm", "train/supervised_tokens", "train/loss/part1", "train/loss/part2")

    def found(name: str) -> tuple[list[Any], list[Any]]:
        evaluations = [
            (line["val/loss"], line["val/tokens"]) for line in metrics(tmp_path / name) if "val/loss" in line
        ]
        return list(by_step(tmp_path / name, *names).values()), evaluations

    go(tmp_path, "one", output_dir=str(tmp_path / "one"), **sections)
    steps, evaluations = found("one")
    more = (f"output_dir={tmp_path / 'moved'}", "dataset.num_parallel_workers=1")
    go(tmp_path, "dp2_zero3", *more, "train.train_steps=3", **sections)
    go(tmp_path, "tp2pp2", *more, **sections)
    moved_steps, moved_evaluations = found("moved")
    np.testing.assert_allclose(moved_steps, steps, rtol=1e-4)
    np.testing.assert_allclose(moved_evaluations, evaluations, rtol=1e-4)
    data = TokenDataset([held_out], SEQ_LENGTH, pad_last=True, isolate_documents=True)
    _, labels, _ = data.batch(np.arange(data.num_samples))
    (result,) = run_ranks(judged, 1, tmp_path / "one" / "checkpoints" / "step-00000006", held_out)
    assert result.loss == pytest.approx(evaluations[-1][0], rel=1e-5)
    assert result.tokens == evaluations[-1][1] == (labels != IGNORED).sum()
    assert result.bits_per_byte is None
    with pytest.raises(ResumeError, match=r"dataset\.isolate_documents: checkpoint True, this run False"):
        go(tmp_path, "one", "dataset.isolate_documents=false", output_dir=str(tmp_path / "one"), **sections)


def test_b23_an_overfit_model_ends_every_document_with_end_of_text(tmp_path: Path) -> None:
    """200 steps over packed documents; the id of end-of-text also fills up what nothing is read from."""
    numbers = count(1)
    documents = [[*islice(numbers, length)] for length in (3, 9, 5, 7, 4, 11)]
    with IndexedWriter(tmp_path / "few", vocab_size=VOCAB) as writer:
        for document in documents * 20:
            writer.add_document(np.array([*document, EOS]))
    go(
        tmp_path,
        "one",
        train={"train_steps": 200},
        dataset={"paths": [str(tmp_path / "few")], "isolate_documents": True},
        checkpoint={"save_checkpoint_steps": 200},
    )
    loaded = load_model(tmp_path / "out", kind=KINDS["cpu"], device=torch.device("cpu"))
    for first, *rest in documents:
        assert generate(loaded.model, [first], max_tokens=20, eos_id=EOS, temperature=0) == rest
