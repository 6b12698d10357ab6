"""What README and docs show is run, resolved and up to date."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from documents import PAGES, ROOT, commands, examples, matches

from meshwright.config.corpus import load_corpus_config
from meshwright.config.load import load_config
from meshwright.config.reference import corpus_table
from meshwright.config.run import resolve, smallest_world_size
from mindrecord_files import extract

LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(#[^)]*)?\)")


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to run commands in, with some text, MindRecord files and the shipped configs."""
    (tmp_path / "text").mkdir()
    for path in sorted((ROOT / "src" / "meshwright" / "spec").glob("*.py")):
        (tmp_path / "text" / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    extract(tmp_path / "records")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_commands_print_what_the_page_shows(page: Path, folder: Path) -> None:
    for example in examples(page):
        what, _, argument = example.mark.partition(": ")
        if what == "file":
            (folder / argument).write_text(example.text, encoding="utf-8")
        elif what == "run":
            vary = argument == "numbers vary"
            code = int(argument.removeprefix("exit ")) if argument.startswith("exit") else 0
            for command, expected in commands(example):
                done = run(command, folder)
                assert done.returncode == code, f"{example}: {command}\n{done.stdout}"
                assert matches(expected, done.stdout, numbers_vary=vary), f"{example}: {command} printed\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_yaml_block_is_a_config_or_marked_as_broken(page: Path, tmp_path: Path) -> None:
    for number, example in enumerate(examples(page)):
        if example.kind != "yaml" or "broken" in example.mark:
            continue
        path = tmp_path / f"{number}.yaml"
        path.write_text(example.text, encoding="utf-8")
        if "inputs:" in example.text:
            load_corpus_config(path, {})
            continue
        loaded = load_config(path)
        resolve(loaded, smallest_world_size(loaded.config))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_console_block_is_run(page: Path) -> None:
    for example in examples(page):
        if example.kind == "console":
            assert example.mark.partition(":")[0] in ("run", "quickstart"), f"{example} is not marked"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    for target, _ in LINK.findall(page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in index] == ["index.md"]


def test_support_matrix_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "support_matrix.py"))["page"]
    assert (ROOT / "docs" / "support-matrix.md").read_text(encoding="utf-8") == page(), "run: make docs"


def test_the_table_of_keys_of_a_corpus_is_current() -> None:
    assert corpus_table() in (ROOT / "docs" / "data-prepare.md").read_text(encoding="utf-8")


def test_every_direct_dependency_has_its_reason_and_its_pin() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    direct = [re.split(r"[><=]", line)[0] for line in lines]
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    lock = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert [name for name in direct if name not in page] == []
    assert [name for name in direct if not re.search(rf"^{name}==", lock, re.MULTILINE | re.IGNORECASE)] == []


def run(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run an example. ``meshwright`` is the one of this interpreter."""
    words = shlex.split(command, comments=True)
    assert words[0] == "meshwright", f"only meshwright commands are run, not {words[0]}"
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
