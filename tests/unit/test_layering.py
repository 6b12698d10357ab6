"""Packages import downwards only, and the arithmetic ones never import torch."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright

ROOT = Path(meshwright.__file__).parent
BELOW = {
    "spec": set(),
    "config": {"spec"},
    "data": {"config"},
    "launch": set(),
    "checkpoint": {"spec", "model"},
    "plan": {"spec", "config"},
    "report": {"spec", "config", "data", "plan", "dryrun"},
    "model": {"spec"},
    "parallel": {"spec", "model"},
    "train": {"spec", "config", "data", "launch", "checkpoint", "model", "parallel"},
    "dryrun": {"spec", "config", "plan", "data", "model", "parallel", "train"},
    "diagnose": {"spec", "config", "data", "plan", "launch", "checkpoint", "parallel", "train", "dryrun"},
}
"""What each package may import besides itself. The verbs (cli) stand above all."""
WITHOUT_TORCH = {"spec", "config", "plan"}
PACKAGES = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())


def imports(file):
    """Dotted names that a file imports anywhere, whole or as ``from``; relative ones made absolute."""
    package = ("meshwright", *file.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield node.lineno, ".".join([*base, *filter(None, [node.module])])


def our_imports(package):
    """(file, line, package) of every import of another package of ours."""
    for file in sorted((ROOT / package).rglob("*.py")):
        for line, name in imports(file):
            parts = name.split(".")
            if parts[0] == "meshwright" and len(parts) > 1 and parts[1] != package:
                yield f"{file.relative_to(ROOT)}:{line}", parts[1]


def test_every_package_has_its_place():
    assert set(PACKAGES) - {"cli"} <= set(BELOW)
    assert {"spec", "config", "model", "parallel", "train"} <= set(PACKAGES)


def test_the_order_has_no_way_back():
    placed = []
    while len(placed) < len(BELOW):
        ready = [name for name, below in BELOW.items() if name not in placed and below <= set(placed)]
        assert ready, set(BELOW) - set(placed)
        placed += ready


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "cli"])
def test_imports_go_downwards(package):
    assert [found for found in our_imports(package) if found[1] not in BELOW[package]] == []


@pytest.mark.parametrize("package", sorted(WITHOUT_TORCH & set(PACKAGES)))
def test_arithmetic_never_names_torch(package):
    files = (ROOT / package).rglob("*.py")
    assert [(file, line) for file in files for line, name in imports(file) if name.split(".")[0] == "torch"] == []


def test_arithmetic_runs_without_torch():
    modules = [
        module.name
        for package in sorted(WITHOUT_TORCH & set(PACKAGES))
        for module in pkgutil.walk_packages([str(ROOT / package)], f"meshwright.{package}.")
    ]
    assert len(modules) > 20
    lines = ["import sys", *(f"import {module}" for module in modules), "assert 'torch' not in sys.modules"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_the_scan_sees_every_kind_of_import():
    """The tests above pass on what they find nothing in; so they must find."""
    found = {other for _, other in our_imports("train")}
    assert {"spec", "parallel", "model"} <= found
    assert [name for _, name in imports(ROOT / "train" / "optimizer.py")].count("torch") == 2
