"""``meshwright config`` as people and scripts meet it: output, exit codes, speed."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

CLEAN = "model: {preset: llama-2m}\ntrain: {seq_length: 256, micro_batch_size: 2}\n"


def meshwright(*arguments: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwright", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    (tmp_path / "clean.yaml").write_text(CLEAN)
    return tmp_path


def test_b25_every_mistake_in_one_go_with_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text('optimizer:\n  learning_rate: "1e-4"\n  learnig_rate: 1e-4\n')
    (tmp_path / "bad.yaml").write_text(
        'base_config: base.yaml\nlearning_rate: 1e-4\nbf16: "no"\nseed: 1\nseed: 2\ntrain:\n  seq_length: 4096.5\n'
    )
    done = meshwright("config", "check", "bad.yaml", "train.epochs=soon", cwd=tmp_path, code=2)
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "bad.yaml:2:1: learning_rate: unknown key; it belongs to optimizer.learning_rate",
        "bad.yaml:3:1: bf16: unknown key; here it is called amp_config.dtype",
        "bad.yaml:5:1: seed: the key stands twice, first on line 4; keep one of them",
        "bad.yaml:7:3: train.seq_length: must be a whole number >= 1, not 4096.5",
        "base.yaml:3:3: optimizer.learnig_rate: unknown key; did you mean optimizer.learning_rate?",
        'command line: train.epochs: must be a number > 0 or null, not "soon"',
        "6 mistakes; nothing was started",
    ]
    shown = meshwright("config", "show", "bad.yaml", cwd=tmp_path, code=2)
    assert len(shown.stderr.splitlines()) == 5
    listed = json.loads(meshwright("config", "check", "bad.yaml", "--json", cwd=tmp_path, code=2).stdout)
    assert [error["line"] for error in listed["errors"]] == [2, 3, 5, 7, 3]


@pytest.mark.parametrize("written", ["1e-4", "1.0e-4", '"1e-4"'])
def test_b25_learning_rates_that_are_right(clean: Path, written: str) -> None:
    (clean / "lr.yaml").write_text(f"{CLEAN}optimizer: {{learning_rate: {written}}}\n")
    shown = json.loads(meshwright("config", "show", "lr.yaml", "--json", cwd=clean).stdout)
    assert shown["optimizer"]["learning_rate"] == 0.0001


def test_b01_b08_rules_are_refused_at_config_check(clean: Path) -> None:
    done = meshwright(
        "config", "check", "clean.yaml", "--parallel_config.model_parallel", "8", "--world-size", "8", cwd=clean, code=2
    )
    assert "command line: parallel_config.model_parallel: " in done.stderr
    assert "num_kv_heads 4" in done.stderr
    odd = meshwright("config", "check", "clean.yaml", "train.global_batch_size=30", "--world-size=8", cwd=clean, code=2)
    assert "legal: 16, 32" in odd.stderr or "legal: 32, 16" in odd.stderr


def test_check_prints_the_arithmetic_and_advice(clean: Path) -> None:
    out = meshwright(
        "config",
        "check",
        "clean.yaml",
        "parallel_config={pipeline_stage: 2, micro_batch_num: 2}",
        "--world-size",
        "4",
        cwd=clean,
    ).stdout
    assert "clean.yaml: ok on 4 device(s)" in out
    assert "parameters: 2,410,176" in out
    equation = "global_batch_size 8 = micro_batch_size 2 x data_parallel 2 x micro_batch_num 2"
    assert f"{equation}; x seq_length 256 = 2048 tokens per step" in out
    assert "stage 0: layers 0-1 | stage 1: layers 2-3" in out
    assert "advice: parallel_config.micro_batch_num: 2 micro-batches leave 2 stages idle 33% of the time" in out
    told = json.loads(meshwright("config", "check", "clean.yaml", "--json", cwd=clean).stdout)
    assert told["ok"] is True
    assert "dataset.paths" in [item["key"] for item in told["advice"]]


def test_init_list_check_show_make_one_story(tmp_path: Path) -> None:
    names = json.loads(meshwright("config", "list", "--json", cwd=tmp_path).stdout)
    assert "quickstart" in names
    meshwright("config", "init", "quickstart", cwd=tmp_path)
    again = meshwright("config", "init", "quickstart", cwd=tmp_path, code=2)
    assert "quickstart.yaml: exists already" in again.stderr
    meshwright("config", "init", "quickstart", "--force", "-o", "quickstart.yaml", cwd=tmp_path)
    assert "ok on 4 device(s)" in meshwright("config", "check", "quickstart.yaml", cwd=tmp_path).stdout
    (tmp_path / "saved.yaml").write_text(meshwright("config", "show", "quickstart.yaml", cwd=tmp_path).stdout)
    assert meshwright("config", "diff", "quickstart.yaml", "saved.yaml", cwd=tmp_path).stdout == "no difference\n"
    wrong = meshwright("config", "init", "quikstart", cwd=tmp_path, code=2)
    assert "did you mean quickstart?" in wrong.stderr


def test_show_says_where_values_come_from(clean: Path) -> None:
    (clean / "child.yaml").write_text("base_config: clean.yaml\nseed: 3\n")
    arguments = ("config", "show", "--origin", "child.yaml", "train.seq_length=512", "--world-size", "2")
    lines = meshwright(*arguments, cwd=clean).stdout.splitlines()
    origins = {line.split(":")[0]: line.split("# ")[1] for line in lines}
    assert origins["seed"] == "child.yaml:2:1"
    assert origins["train.micro_batch_size"] == "clean.yaml:2:26"
    assert origins["train.seq_length"] == "command line"
    assert origins["model.hidden_size"] == "preset llama-2m"
    assert origins["parallel_config.data_parallel"] == "auto, 2 devices"
    assert origins["train.global_batch_size"] == "derived from the batch equation"
    assert origins["monitor.log_steps"] == "default"
    as_json = json.loads(meshwright(*arguments, "--json", cwd=clean).stdout)
    assert as_json["seed"] == {"value": 3, "origin": "child.yaml:2:1"}


def test_the_config_comes_back_out_of_a_log(clean: Path) -> None:
    from meshwright.config.load import load_config
    from meshwright.config.run import config_log_lines, resolve, resolved_yaml

    run = resolve(load_config(clean / "clean.yaml"), 2)
    log = b"\xff\xfe binary noise\n" + "\n".join(f"[rank 0] {line}" for line in config_log_lines(run)).encode()
    (clean / "run.log").write_bytes(log)
    assert meshwright("config", "show", "--from-log", "run.log", cwd=clean).stdout == resolved_yaml(run)
    as_json = json.loads(meshwright("config", "show", "--from-log", "run.log", "--json", cwd=clean).stdout)
    assert as_json["train"]["seq_length"] == 256
    (clean / "empty.log").write_text("nothing here\n")
    empty = meshwright("config", "show", "--from-log", "empty.log", cwd=clean, code=2)
    assert "empty.log: holds no resolved config" in empty.stderr


def test_diff_warns_about_the_learning_rate(clean: Path) -> None:
    done = meshwright("config", "diff", "clean.yaml", "train.micro_batch_size=4", cwd=clean)
    assert "train.micro_batch_size: 2 -> 4" in done.stdout
    assert "notice: global_batch_size went from 2 to 4" in done.stdout
    told = json.loads(meshwright("config", "diff", "clean.yaml", "clean.yaml", "seed=2", "--json", cwd=clean).stdout)
    assert told == {"changed": [{"key": "seed", "before": 1, "after": 2}], "notices": []}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("config", "check", "nope.yaml"), "nope.yaml: no such file; did you mean clean.yaml?"),
        (("config", "check", "."), ".: is a directory"),
        (("config", "show"), "needs either CONFIG or --from-log LOG"),
        (("config", "show", "--from-log", "gone.log"), "gone.log: no such file"),
        (("config", "diff", "clean.yaml"), "needs a second config"),
        (("config", "check", "clean.yaml", "--world-size", "0"), "--world-size 0: must be 1 or more"),
        (("config", "check", "clean.yaml", "--world-size", "two"), "invalid int value: 'two'"),
        (("config", "list", "seed=1"), "takes no overrides"),
        (("config", "init", "quickstart", "-o", "no/such/folder.yaml"), "cannot be written"),
        (("confg",), "no verb 'confg'; did you mean config?"),
        (("config", "shwo"), "invalid choice: 'shwo'"),
        ((), ""),
    ],
)
def test_wrong_requests_get_one_message_and_exit_code_2(clean: Path, arguments: tuple[str, ...], told: str) -> None:
    done = meshwright(*arguments, cwd=clean, code=2)
    assert told in done.stderr


def test_help_answers_at_once_and_imports_nothing_heavy(tmp_path: Path) -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        out = meshwright("--help", cwd=tmp_path).stdout
        times.append(time.perf_counter() - start)
    assert "config" in out
    assert min(times) < 0.3
    code = (
        "import sys, meshwright.cli as c; c.main(['config', 'check', '--help'])\n"
        "print({'torch', 'numpy', 'pydantic', 'yaml', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()"


def test_resolving_a_config_never_imports_torch(clean: Path) -> None:
    code = "import sys, meshwright.cli as c; c.main(['config', 'check', 'clean.yaml']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=clean, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_a_reader_that_leaves_early_is_no_error(clean: Path) -> None:
    command = f"{sys.executable} -m meshwright config show clean.yaml | head -1"
    done = subprocess.run(command, shell=True, cwd=clean, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.startswith("# resolved for 1 device")
