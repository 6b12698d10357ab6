"""``meshwright data`` as a user runs it."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MESHWRIGHT = [sys.executable, "-m", "meshwright", "data"]


def run(*args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*MESHWRIGHT, *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for number in range(80):
        (root / f"{number}.py").write_text(f"def f{number}(x):\n    return x + {number}\n")
    return root


def test_prepare_and_inspect(source: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "out" / "corpus"
    args = (source, "--suffix", ".py", "--train-tokenizer", 300, "--eval-fraction", 0.1, "--workers", 2)
    printed = run("prepare", *args, "--output", prefix)
    assert "train: " in printed.stdout
    assert f"wrote {prefix}.bin" in printed.stdout
    again = json.loads(run("prepare", *args, "--output", prefix, "--overwrite", "--json").stdout)
    assert again["train"]["documents"] + again["eval"]["documents"] == 80
    assert again["output"] == str(prefix)
    report = json.loads(run("inspect", prefix, "--json").stdout)
    assert report["splits"][0]["tokens"] == again["train"]["tokens"]
    assert report["record"]["vocab_size"] == again["vocab_size"]
    text = run("inspect", prefix).stdout
    assert "uint16" in text
    assert "document 0, token 0, not in the loss: 'def" in text


def test_mistakes_are_one_line_and_exit_code_2(source: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "corpus"
    tokenizer = ("--train-tokenizer", 300)
    cases = [
        ((tmp_path / "gone", "--output", prefix, *tokenizer), "gone: no such file or directory"),
        ((source, "--output", prefix, *tokenizer), "no file ends in .txt, .jsonl or .parquet; it has .py (80)"),
        ((source, "--suffix", ".py", "--output", prefix, "--train-tokenizer", 9), "too small"),
        ((source, "--suffix", ".py", "--output", prefix, "--tokenizer", source / "0.py"), "neither a tokenizer.json"),
        ((source, "--suffix", ".py", "--output", source, *tokenizer), "is a directory"),
        ((source, "--suffix", ".py", "--output", prefix, *tokenizer, "--workers", -1), "workers"),
    ]
    for args, message in cases:
        last = run("prepare", *args, code=2).stderr.strip().splitlines()[-1]
        assert last.startswith("meshwright data prepare: ")
        assert message in last
    done = run("inspect", prefix, code=2)
    assert done.stderr.startswith(f"meshwright data inspect: {prefix}.idx: no such file")
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_leaves_nothing_behind(source: Path, tmp_path: Path, workers: int) -> None:
    run("prepare", source, "--suffix", ".py", "--output", tmp_path / "first", "--train-tokenizer", 300)
    out = tmp_path / "out"
    # Billions of blank lines: reading them lasts until the interrupt.
    (tmp_path / "endless.jsonl.gz").write_bytes(gzip.compress(b"\n" * (1 << 26)) * 200)
    args = [source, tmp_path / "endless.jsonl.gz", "--suffix", ".py", "--output", out / "corpus", "--workers", workers]
    args += ["--tokenizer", tmp_path / "first.tokenizer.json"]
    process = subprocess.Popen(
        [*MESHWRIGHT, "prepare", *map(str, args)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while not list(out.glob(".corpus.partial/tokens-*/*.bin.*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "meshwright data prepare: interrupted; no corpus file was written"
    assert "Traceback" not in stderr
    assert list(out.iterdir()) == []


def test_a_config_file_is_a_request_and_options_win_over_it(source: Path, tmp_path: Path) -> None:
    config = tmp_path / "corpus.yaml"
    config.write_text(
        f"inputs: [{source}]\nsuffixes: [.py]\noutput: {tmp_path / 'a'}\ntrain_tokenizer: 300\neval_fraction: 0.1\n"
    )
    flags = (source, "--suffix", ".py", "--train-tokenizer", 300, "--eval-fraction", 0.1, "--workers", 0)
    run("prepare", config, "--workers", 0)
    run("prepare", *flags, "--output", tmp_path / "b")
    for suffix in (".bin", ".idx", ".eval.bin", ".tokenizer.json", ".json"):
        assert Path(f"{tmp_path / 'a'}{suffix}").read_bytes() == Path(f"{tmp_path / 'b'}{suffix}").read_bytes()
    run(
        "prepare",
        config,
        "--tokenizer",
        tmp_path / "a.tokenizer.json",
        "--eval-fraction",
        0,
        "--output",
        tmp_path / "c",
    )
    record = json.loads((tmp_path / "c.json").read_text())
    assert (record["eval_fraction"], record["eval"]["documents"]) == (0, 0)


def test_all_mistakes_of_a_config_file_are_told_with_their_place(tmp_path: Path) -> None:
    config = tmp_path / "corpus.yaml"
    config.write_text(
        "inputs: rows.jsonl\noutptu: c\ntrain_tokenizer: many\nclean:\n  thresholds: {c4.min_words: few}\n"
    )
    done = run("prepare", config, "--workers", -1, code=2)
    assert done.stderr.removeprefix("meshwright data prepare: ").splitlines() == [
        f"{config}: output: is missing; write it there, or give --output PREFIX",
        f'{config}:1:1: inputs: must be a list, each text, not "rows.jsonl"',
        f"{config}:2:1: outptu: unknown key; did you mean output?",
        f'{config}:3:1: train_tokenizer: must be a whole number >= 1 or null, not "many"',
        f'{config}:5:16: clean.thresholds.c4.min_words: must be a number, not "few"',
        "--workers: must be a whole number >= 0 or null, not -1",
    ]
    assert "a config file stands alone" in run("prepare", config, tmp_path, code=2).stderr
