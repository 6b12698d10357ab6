"""What is shipped is true: recipes and configs resolve, the reference page and the names are current."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from meshwright.config.advice import advise
from meshwright.config.errors import ConfigErrors
from meshwright.config.hints import ELSEWHERE
from meshwright.config.keys import keys
from meshwright.config.load import load_config
from meshwright.config.recipes import recipe, recipes, summary
from meshwright.config.reference import reference
from meshwright.config.run import resolve, smallest_world_size
from meshwright.config.schema import Config
from meshwright.config.schema_model import ModelConfig, RopeScalingConfig
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec, RopeScaling
from meshwright.spec.parameters import total
from meshwright.spec.training import OptimizerSpec, ScheduleSpec

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
# Devices that the first line of each recipe promises.
DEVICES = {
    "quickstart": 4,
    "llama-124m": 8,
    "llama2-13b": 8,
    "llama3-8b": 8,
    "llama3-70b-64gpu": 64,
    "llama3-70b-256gpu": 256,
}


@pytest.mark.parametrize("name", list(recipes()))
def test_every_recipe_runs_on_the_devices_it_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(recipe(name))
    loaded = load_config(path)
    run = resolve(loaded, DEVICES[name])
    assert run.layout.world_size == DEVICES[name]
    assert len(summary(recipe(name))) > 20
    told = {item.key for item in advise(run, loaded.config, cores=64)}
    assert told <= {"amp_config.amp_level"}, "a recipe follows our own advice"


def test_the_quickstart_model_is_as_small_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(recipe("quickstart"))
    run = resolve(load_config(path), 4)
    assert summary(recipe("quickstart")).startswith(f"{total(run.model) / 1e6:.1f}M parameters")
    assert run.model.vocab_size == 2048


def test_an_unknown_recipe_gets_a_hint() -> None:
    with pytest.raises(ConfigErrors, match=r"no recipe named 'quickstrat'; did you mean quickstart\?"):
        recipe("quickstrat")


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.parent.name != "base"], ids=lambda path: path.stem)
def test_every_config_of_the_repository_resolves(path: Path) -> None:
    loaded = load_config(path)
    run = resolve(loaded, smallest_world_size(loaded.config))
    assert run.config.optimizer.betas == (0.9, 0.95), "inherited from base/llama.yaml"
    assert len(run.config.dataset.paths) == 2, "inherited from base/web.yaml"


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == reference(), "run: python -m meshwright.config.reference docs/configuration.md"
    for key in keys().values():
        assert key.description, f"{key.path} has no description"
        assert f"`{key.name}`" in page or f"`{key.path}`" in page


def test_names_are_those_of_the_spec() -> None:
    sizes = {field.name for field in fields(ModelSpec)}
    assert sizes | {"preset", "pretrained_model_dir", "moe"} == set(ModelConfig.model_fields)
    assert {field.name for field in fields(RopeScaling)} == set(RopeScalingConfig.model_fields)
    layout = {field.name for field in fields(Layout)}
    config_only = {"micro_batch_num", "context_parallel_algo", "shard"}
    assert layout | config_only == set(type(Config().parallel_config).model_fields)


def test_defaults_are_those_of_the_spec() -> None:
    config = Config()
    for spec, section in ((Layout(), config.parallel_config), (OptimizerSpec(), config.optimizer)):
        for field in fields(spec):
            ours = getattr(section, field.name)
            assert ours == getattr(spec, field.name) or ours == "auto", field.name
    assert ScheduleSpec(**config.lr_schedule.model_dump()) == ScheduleSpec()


def test_names_from_elsewhere_lead_to_keys_that_exist() -> None:
    assert set(ELSEWHERE.values()) <= set(keys())
    assert not {name for name in ELSEWHERE if name in keys()}


def test_recipes_and_configs_inherit_only_in_configs() -> None:
    assert all("base_config" not in text for text in recipes().values()), "init writes one file"
    assert sum(bool(re.search("^base_config:", path.read_text(), re.M)) for path in CONFIGS) >= 3
