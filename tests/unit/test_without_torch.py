"""The plan side of the package works where torch is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "meshwright"
PLAN_SIDE = [name for name in ("spec", "config", "plan") if (PACKAGE / name).is_dir()]
# What the extra `train` brings.
HEAVY = ("torch", "numpy", "tokenizers", "safetensors", "tensorboard", "psutil", "transformers")


def modules(package: str) -> list[str]:
    paths = [path.relative_to(PACKAGE.parent) for path in sorted((PACKAGE / package).rglob("*.py"))]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]


@pytest.mark.parametrize("package", PLAN_SIDE)
def test_plan_side_imports_without_the_train_extra(package: str) -> None:
    names = modules(package)
    assert len(names) > 1
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in HEAVY)
    code = f"import sys, importlib\n{blocked}for name in {names!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_config_check_runs_without_the_train_extra(tmp_path: Path) -> None:
    config = tmp_path / "x.yaml"
    config.write_text("model: {preset: llama2-7b}\n")
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in HEAVY)
    code = f"import sys\n{blocked}from meshwright.cli import main\nsys.exit(main(['config', 'check', {str(config)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ok on 1 device" in done.stdout
