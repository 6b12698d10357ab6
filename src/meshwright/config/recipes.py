"""Starter configs that are shipped with the package."""

from importlib import resources

from meshwright.config.errors import ConfigError, ConfigErrors
from meshwright.config.hints import nearest


def recipes() -> dict[str, str]:
    """Text of every recipe by name, in the order of the names."""
    folder = resources.files("meshwright").joinpath("recipes")
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): folder.joinpath(name).read_text(encoding="utf-8") for name in files}


def recipe(name: str) -> str:
    """Text of one recipe. Raises ConfigErrors with near names when there is none of that name."""
    known = recipes()
    if name not in known:
        raise ConfigErrors([ConfigError(f"no recipe named {name!r}", suggestion=nearest(name, list(known)))])
    return known[name]


def summary(text: str) -> str:
    """What a recipe says about itself in its first line."""
    return text.partition("\n")[0].lstrip("# ")
