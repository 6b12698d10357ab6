"""``meshwright eval`` and ``meshwright generate`` as a user runs them."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


def meshwright(*args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwright", *map(str, args)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def refusal(*args: str | Path) -> str:
    """The one line that a wrong request is answered with."""
    done = meshwright(*args, code=2)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with source text, a corpus with its tokenizer, a config and its run."""
    root = tmp_path_factory.mktemp("trained")
    (root / "source").mkdir()
    for number in range(60):
        (root / "source" / f"{number}.txt").write_text(f"the number {number} follows the number {number - 1}\n" * 4)
    corpus = root / "corpus"
    meshwright(
        "data",
        "prepare",
        root / "source",
        "--suffix",
        ".txt",
        "--train-tokenizer",
        300,
        "--eval-fraction",
        0.2,
        "--output",
        corpus,
    )
    values = {
        "output_dir": str(root / "run"),
        "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "vocab_size": 300},
        "train": {"seq_length": 32, "global_batch_size": 4, "micro_batch_size": 2, "train_steps": 4},
        "dataset": {
            "paths": [str(corpus)],
            "eval_paths": [f"{corpus}.eval"],
            "tokenizer": str(next(root.glob("corpus*tokenizer*.json"), root / "tokenizer.json")),
        },
        "monitor": {"tensorboard": False},
    }
    (root / "config.yaml").write_text(yaml.safe_dump(values))
    meshwright("train", root / "config.yaml")
    return root


def test_eval_of_a_run_a_config_and_a_checkpoint_agree_with_the_run_itself(trained: Path) -> None:
    checkpoint = trained / "run" / "checkpoints" / "step-00000004"
    results = [json.loads(meshwright("eval", target, "--json").stdout) for target in (trained / "run", checkpoint)]
    assert results[0] == results[1]
    assert results[0]["checkpoint"] == str(checkpoint)
    assert results[0]["step"] == 4
    lines = [json.loads(line) for line in (trained / "run" / "metrics.jsonl").read_text().splitlines()]
    (during,) = [line for line in lines if "val/loss" in line]
    assert results[0]["tokens"] == during["val/tokens"]
    assert results[0]["loss"] == pytest.approx(during["val/loss"], abs=1e-5)
    assert results[0]["perplexity"] == pytest.approx(math.exp(results[0]["loss"]))
    assert 0 < results[0]["bits_per_byte"] < 8
    text = meshwright("eval", trained / "config.yaml").stdout
    assert f"loss {results[0]['loss']:.4f}  perplexity" in text
    assert f"bits per byte {results[0]['bits_per_byte']:.4f}" in text


def test_eval_of_other_data_and_of_a_part(trained: Path) -> None:
    part = json.loads(
        meshwright("eval", trained / "run", "--data", trained / "corpus", "--batches", 2, "--json").stdout
    )
    assert part["tokens"] == 2 * 2 * 32
    assert part["bits_per_byte"] is None


def test_generate_is_repeatable_and_says_what_it_did(trained: Path) -> None:
    prompt = os.fsdecode(b"the number \xff")
    args = ("generate", trained / "run", "--prompt", prompt, "--max-tokens", 12, "--json")
    first, again = (json.loads(meshwright(*args).stdout) for _ in range(2))
    assert first == again
    assert first["prompt"] == "the number \ufffd"
    assert first["step"] == 4
    assert 0 < first["tokens"] <= 12
    greedy = meshwright("generate", trained / "run", "--prompt", "", "--max-tokens", 3, "--temperature", 0).stdout
    assert greedy.strip() != ""


def test_wrong_requests_are_refused_in_one_line(trained: Path, tmp_path: Path) -> None:
    run = trained / "run"
    assert "no such run directory" in refusal("eval", tmp_path / "gone")
    assert "no complete checkpoint" in refusal("generate", tmp_path, "--prompt", "x")
    assert "--batches is 0; legal: 1 or more" in refusal("eval", run, "--batches", 0)
    assert "key.path=value needs a CONFIG" in refusal("eval", run, "train.seq_length=8")
    assert str(tmp_path / "nothing") in refusal("eval", run, "--data", tmp_path / "nothing")
    assert "--temperature is -1.0; legal: 0 or more" in refusal("generate", run, "--prompt", "x", "--temperature=-1")
    assert "no such file" in refusal("generate", run, "--prompt", "x", "--tokenizer", tmp_path / "t.json")


def test_a_damaged_checkpoint_is_refused_in_one_line(trained: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "step-00000004"
    shutil.copytree(trained / "run" / "checkpoints" / "step-00000004", damaged)
    (damaged / "manifest.json").unlink()
    assert "manifest.json" in refusal("eval", damaged)


def test_a_tokenizer_of_another_vocabulary_is_refused_in_one_line(trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    words = " ".join(f"w{a}{b}" for a in "abcdefghij" for b in "klmnopqrst")
    (source / "a.txt").write_text(words * 3)
    meshwright("data", "prepare", source, "--suffix", ".txt", "--train-tokenizer", 400, "--output", tmp_path / "big")
    (file,) = [path for path in tmp_path.rglob("*.json") if "tokenizer" in path.name]
    line = refusal("generate", trained / "run", "--prompt", "wak waa", "--tokenizer", file)
    assert "vocabulary" in line


def test_eval_of_data_with_other_ids_is_refused_in_one_line(trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (tmp_path / "a.txt").write_text("other words are other ids " * 40)
    meshwright("data", "prepare", tmp_path / "a.txt", "--train-tokenizer", 280, "--output", other)
    line = refusal("eval", trained / "run", "--data", other)
    assert f"{trained / 'corpus'} and {other} were made with different tokenizers" in line


def test_an_exported_folder_generates_what_its_run_does(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    printed = meshwright("checkpoint", "export", trained / "run", out).stdout
    assert f"(step 4) -> {out}: 21 tensors" in printed
    assert "tokenizer: " in printed
    prompt = ("--prompt", "the number", "--max-tokens", 8, "--temperature", 0)
    assert meshwright("generate", out, *prompt).stdout == meshwright("generate", trained / "run", *prompt).stdout
    evaluated = json.loads(meshwright("eval", out, "--data", trained / "corpus.eval", "--json").stdout)
    assert evaluated["step"] is None
    assert 0 < evaluated["loss"] < 1.2 * math.log(300)
    (out / "model.safetensors").unlink()
    assert "holds a config.json, but no weights" in refusal("generate", out, *prompt)
