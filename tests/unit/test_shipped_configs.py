"""Every config that is shipped fits the machine it is meant for; a few of them dry-run here, all by the benchmark."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
shipped_configs = pytest.importorskip("benchmarks.shipped_configs")
ROOT = Path(__file__).parents[2]
SAMPLE = ("src/meshwright/recipes/quickstart.yaml", "configs/llama2-7b.yaml")
"""One on processes of a CPU, split over stages; one on GPUs."""


def test_no_config_is_left_out() -> None:
    files = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / shipped_configs.RECIPES).glob("*.yaml")]
    assert {str(file.relative_to(ROOT)) for file in files} == {shipped.file for shipped in shipped_configs.SHIPPED}


def test_the_table_has_every_config() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (\d+) x (\S+) \|.*\| yes \|", page, re.M)
    assert rows == [(one.name, str(one.devices), one.hardware) for one in shipped_configs.SHIPPED]


@pytest.mark.parametrize("file", SAMPLE)
def test_it_is_legal_and_fits_and_the_plan_agrees(file: str) -> None:
    (shipped,) = (one for one in shipped_configs.SHIPPED if one.file == file)
    row = shipped_configs.examined(shipped, fast=True)
    assert row["legal"]
    assert row["fits"]
    assert row["planned"] == pytest.approx(row["allocated"], rel=0.03)
    assert re.match(r"\S+, \d+ x \S+: .+ GiB allocated \(plan [+-][\d.]+ %\), fits; ", shipped_configs.line(row))
