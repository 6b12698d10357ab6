"""``meshwright plan`` as users start it: answers, refusals, files it writes, and that train runs them."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.config.load import load_config
from meshwright.config.recipes import recipes
from meshwright.config.run import resolve, smallest_world_size
from meshwright.plan.engines import ENGINES

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.yaml"))


def promised(path: Path) -> int:
    """Devices that the first line of a config names."""
    found = re.search(r"on (\d+)", path.read_text().splitlines()[0])
    return int(found[1]) if found else 8


TINY = """
output_dir: run
model: {num_layers: 4, hidden_size: 64, num_heads: 4, num_kv_heads: 2, intermediate_size: 128, vocab_size: 512}
parallel_config: {data_parallel: auto}
train: {seq_length: 32, micro_batch_size: 1, global_batch_size: 8, train_steps: 2}
dataset: {paths: [corpus/c], num_parallel_workers: 0}
checkpoint: {save_checkpoint_steps: 2}
monitor: {log_steps: 1, tensorboard: false}
"""
SIXTEEN = """
model: {preset: llama2-7b}
parallel_config: {model_parallel: 2, pipeline_stage: 2, micro_batch_num: 8}
train: {seq_length: 2048, micro_batch_size: 1}
amp_config: {amp_level: O2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "sixteen.yaml").write_text(SIXTEEN)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def plan(folder: Path, capsys: pytest.CaptureFixture):
    """Runs the verb: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["plan", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_example_of_the_readme(plan) -> None:
    code, out, _ = plan("configs/llama2-13b.yaml", "--devices", "8", "--hardware", "a100-80g")
    assert code == 0
    lines = out.splitlines()
    assert re.match(r"fits: \d+ of \d+ layouts on 8 x 79\.2 GiB; best .+, [\d.]+ GiB, [\d.]+ s/step\Z", lines[0])
    assert len([line for line in lines if re.match(r" *\d+  (dp|tp|pp)\d", line)]) == 10
    for title in ("closest misses:", "what the numbers say:", "to use the best, add:", "assumed:", "expected error:"):
        assert title in lines


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_planned(path: Path, plan) -> None:
    code, out, err = plan(f"configs/{path.name}", "--devices", str(promised(path)), "--hardware", "h100")
    assert code == 0, out + err
    assert out.startswith("fits: ")


@pytest.mark.parametrize("name", list(recipes()))
def test_every_recipe_is_planned(name: str, folder: Path, plan) -> None:
    (folder / "recipe.yaml").write_text(recipes()[name])
    devices = re.search(r"on (\d+) (?:GPUs|processes)", recipes()[name].splitlines()[0])
    hardware = "cpu" if name == "quickstart" else "h100-96g"
    code, out, err = plan("recipe.yaml", "--devices", devices[1] if devices else "8", "--hardware", hardware)
    assert code == 0, out + err


@pytest.mark.parametrize("path", [path for path in CONFIGS if promised(path) <= 16], ids=lambda path: path.stem)
def test_the_override_is_accepted_and_keeps_the_run_the_same(path: Path, plan, capsys) -> None:
    config = f"configs/{path.name}"
    code, out, _ = plan(config, "--devices", "16", "--hardware", "h100", "--json")
    values = json.loads(out)
    assert code == 0
    loaded = load_config(Path(config))
    before = resolve(loaded, smallest_world_size(loaded.config))
    after = resolve(load_config(Path(config), values["override"]), 16)
    assert after.train.seq_length == before.train.seq_length
    if before.config.train.global_batch_size == loaded.config.train.global_batch_size:
        assert after.train.batch.global_batch_size == before.train.batch.global_batch_size
    assert f"{after.layout.short()}" == values["layouts"][0]["name"]
    assert main(["config", "show", config, "--world-size", "16", *values["override"]]) == 0
    capsys.readouterr()


def test_the_override_can_be_pasted_into_a_shell(plan) -> None:
    _, out, _ = plan("configs/llama2-13b.yaml", "--devices", "8", "--hardware", "a100-40g", "--fix", "recompute=select")
    line = out.split("to use the best, add:\n")[1].splitlines()[0].strip()
    words = shlex.split(line)
    assert "recompute_config.select_recompute=[elementwise]" in words or "select_recompute" in line
    assert main(["config", "check", "configs/llama2-13b.yaml", "--world-size", "8", *words]) == 0


def test_b08_sixteen_devices(plan) -> None:
    code, out, _ = plan("sixteen.yaml", "--devices", "16", "--hardware", "h100", "--fix", "tp=2", "--fix", "pp=2,mbs=1")
    assert code == 0
    assert (
        "global_batch_size 32 = micro_batch_size 1 x data_parallel 4 x micro_batch_num 8;"
        " x seq_length 2048 = 65536 tokens per step" in out
    )


def test_b08_a_global_batch_that_does_not_divide(plan) -> None:
    fixed = ("--devices", "16", "--hardware", "h100", "--fix", "tp=2,pp=2,mbs=1")
    code, out, err = plan("sixteen.yaml", "--global-batch", "30", *fixed)
    assert (code, out) == (2, "")
    assert "30 is not a multiple of micro_batch_size 1 x data_parallel 4 = 4" in err
    assert "28" in err
    assert "32" in err
    code, out, _ = plan("sixteen.yaml", "--global-batch", "30", "--devices", "16", "--hardware", "h100")
    assert code == 0, "other splits of 16 devices do divide 30"
    assert "dp4: global batch 30 does not divide by 4 data ranks (28 or 32 would do)" in out
    assert "the config's own layout does not run on 16 devices: train.global_batch_size: 30 is not a multiple" in out


def test_b08_three_numbers_that_disagree(plan) -> None:
    code, out, err = plan("sixteen.yaml", "train.global_batch_size=30", "--devices", "16", "--hardware", "h100")
    assert (code, out) == (2, "")
    assert "global_batch_size = micro_batch_size x data_parallel x micro_batch_num" in err
    assert "30 contradicts micro_batch_size 1 x data_parallel 4 x micro_batch_num 8 = 32" in err


def test_b08_a_larger_micro_batch(plan) -> None:
    where = ("--devices", "16", "--hardware", "h100", "--fix", "tp=2,pp=2,mbs=2")
    _, out, _ = plan("sixteen.yaml", *where, "--global-batch", "32")
    assert "global_batch_size 32 = micro_batch_size 2 x data_parallel 4 x micro_batch_num 4" in out
    _, out, _ = plan("sixteen.yaml", *where, "train.micro_batch_size=2")
    assert "global_batch_size 64 = micro_batch_size 2 x data_parallel 4 x micro_batch_num 8" in out
    assert "notice: global_batch_size went from 32 to 64 (x2) but learning_rate stayed 0.0003" in out


def test_what_does_not_fit_ends_with_1_and_says_what_would(plan) -> None:
    code, out, _ = plan("configs/llama2-7b.yaml", "--devices", "1", "--hardware", "a100-80g")
    assert code == 1
    assert out.startswith("does not fit: 0 of ")
    assert "what would fit:" in out
    assert re.search(r"2 devices: .* fits", out)
    assert "to use the best" not in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--hardware", "a100-81g"), "did you mean"),
        (("--hardware", "nosuch.yaml"), "no such file"),
        (("--engine", "megatorn"), "did you mean megatron?"),
        (("--fix", "tpp=2"), "did you mean tp?"),
        (("--fix", "tp=3"), "tp=3 cannot be held on 8 devices"),
        (("--fix", "zero=7"), "0, 1, 2, 3"),
        (("--fix", "cp=2"), "--hypothetical"),
        (("--fix", "recompute=some"), "none, select, all"),
        (("--devices", "0"), "must be 1 or more"),
        (("--global-batch", "0"), "must be a whole number >= 1"),
        (("--top", "0"), "must be 1 or more"),
        (("--max-memory", "lots"), "70GiB, 70GB or 90%"),
        (("--explain", "dp2 tp2"), "takes 4 devices, not 8"),
        (("--explain", "zerro"), "names no part of a layout"),
        (("--explain", "99"), "the table has no such row"),
        (("train.seq_lenght=5",), "did you mean"),
        (("model.preset=llama2-14b",), "did you mean"),
        (("train.global_batch_size=",), "cannot read the value"),
    ],
)
def test_wrong_requests_end_with_2_and_what_is_legal(arguments: tuple[str, ...], told: str, plan) -> None:
    base = ["configs/llama2-13b.yaml"]
    if "--devices" not in arguments:
        base += ["--devices", "8"]
    code, out, err = plan(*base, *arguments)
    assert code == 2
    assert out == ""
    assert told in err
    assert "Traceback" not in err


def test_a_missing_config_is_a_wrong_request(plan) -> None:
    code, _, err = plan("nosuch.yaml")
    assert code == 2
    assert "nosuch.yaml: no such file" in err


def test_what_train_does_not_support_is_planned_on_request_only(plan) -> None:
    adapters = "pet_config={pet_type: lora, rank: 8}"
    where = ("configs/llama2-7b.yaml", adapters, "--devices", "8", "--hardware", "a100-80g")
    code, _, err = plan(*where)
    assert code == 2
    assert "pet_config: parameter-efficient tuning is not supported yet" in err
    assert plan(*where, "--hypothetical")[0] == 0
    assert plan(*where, "--engine", "deepspeed")[0] == 0
    assert plan("configs/llama2-7b.yaml", "model.moe={num_experts: 8, experts_per_token: 2}", "--hypothetical")[0] == 2


@pytest.mark.parametrize("name", [profile.name for profile in ENGINES])
def test_every_engine_answers(name: str, plan) -> None:
    code, out, err = plan("configs/llama2-7b.yaml", "--devices", "16", "--hardware", "a100-80g", "--engine", name)
    assert code == 0, out + err
    assert out.startswith("fits: ")
    assert ("to use the best, add" in out) == (name == "meshwright")


def test_explain_one_layout(plan) -> None:
    where = ("configs/llama2-13b.yaml", "--devices", "8", "--hardware", "a100-80g")
    code, out, _ = plan(*where, "--explain", "dp2 tp2 pp2 zero1 mbs1 recompute=none")
    assert code == 0
    assert out.startswith("dp2 tp2 pp2 zero1")
    for part in ("memory, GiB per device", "time of a step", "messages of the busiest rank", "comm_fusion"):
        assert part in out
    for axis in ("tensor", "pipeline", "data"):
        assert re.search(rf"^  {axis} ", out, re.M), axis
    best = plan(*where, "--explain")[1]
    assert best.splitlines()[0] == plan(*where, "--explain", "1")[1].splitlines()[0]
    code, out, _ = plan(*where, "--explain", "dp8 zero0")
    assert code == 1
    assert "what would fit:" in out
    code, out, _ = plan(*where, "--explain", "dp8 zero1", "--json")
    assert {"question", "explain"} == set(json.loads(out))


def test_a_hardware_file_is_a_machine(folder: Path, plan) -> None:
    (folder / "mine.yaml").write_text("device: a100-80g\nname: mine\nmemory_gib: 60\n")
    code, out, _ = plan("configs/llama2-7b.yaml", "--devices", "8", "--hardware", "mine.yaml")
    assert code == 0
    assert "8 x 60 GiB" in out.splitlines()[0]


def test_pages_and_configs_are_written(folder: Path, plan) -> None:
    where = ("configs/llama2-13b.yaml", "--devices", "8", "--hardware", "a100-80g")
    code, _, err = plan(*where, "--html", "plan.html", "--write", "best.yaml")
    assert code == 0
    assert "wrote plan.html" in err
    assert (folder / "plan.html").read_text().startswith("<!doctype html>")
    assert main(["config", "check", "best.yaml", "--world-size", "8"]) == 0
    code, _, err = plan(*where, "--write", "best.yaml")
    assert code == 2
    assert "exists already" in err
    assert plan(*where, "--write", "best.yaml", "--force")[0] == 0
    assert plan(*where, "--write", "other.yaml", "--engine", "megatron")[0] == 2
    assert not (folder / "other.yaml").exists()
    code, _, err = plan(*where, "--write", "nosuch/best.yaml")
    assert code == 2
    assert "cannot be written" in err


def test_train_runs_what_plan_writes(folder: Path, plan) -> None:
    text = folder / "text"
    text.mkdir()
    for path in Path(json.__file__).parent.glob("*.py"):
        (text / path.name).write_text(path.read_text())
    prepare = ("data", "prepare", "text", "--suffix", ".py", "--train-tokenizer", "512", "--output", "corpus/c")
    assert main(list(prepare)) == 0
    code, out, err = plan("tiny.yaml", "--devices", "2", "--hardware", "cpu", "--fix", "pp=2", "--write", "best.yaml")
    assert code == 0, out + err
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", "train", "best.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    log = done.stdout + done.stderr
    assert "layout: pp2" in log
    assert "step 2/2" in log
    assert "global_batch_size 8 = " in log


def test_plan_needs_no_torch_and_little_time(folder: Path) -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in ("torch", "numpy"))
    arguments = ["plan", "configs/llama2-13b.yaml", "--devices", "8", "--hardware", "a100-80g", "--html", "a.html"]
    code = f"import sys\n{blocked}from meshwright.cli import main\nsys.exit(main({arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fits: ")


@pytest.mark.parametrize("option", ["--write", "--html"])
def test_a_folder_that_is_not_there_is_told_before_anything_is_printed(plan, option: str) -> None:
    code, out, err = plan("tiny.yaml", "--devices", "2", "--hardware", "h100", option, "nowhere/best")
    assert code == 2
    assert not out
    assert f"{option} nowhere/best: cannot be written: no such folder" in err
