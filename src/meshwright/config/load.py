"""Reads a config file with what it inherits and what the command line overrides."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.config.errors import DEFAULT, ConfigError, ConfigErrors, Origin
from meshwright.config.hints import nearest
from meshwright.config.overrides import apply_overrides
from meshwright.config.schema import Config
from meshwright.config.source import Node, parse_text, read_file
from meshwright.config.validate import drop_cleared, origin_of, validate


@dataclass(frozen=True)
class LoadedConfig:
    """A config with the place that each given value came from.

    Attributes:
        origins: place of every key that a file or the command line set, by dotted path; the rest are defaults.
        path: the file it was loaded from.
    """

    config: Config
    origins: Mapping[str, Origin]
    path: Path

    def origin(self, key: str) -> Origin:
        """Place of one key: its own, its section's, or ``default``."""
        return origin_of(key, self.origins) or DEFAULT


def load_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Load a file, its ``base_config`` chain and the overrides ``a.b=c``, ``--a.b=c``, ``--a.b c``.

    Raises:
        ConfigErrors: with every mistake of every file and override at once.
    """
    errors: list[ConfigError] = []
    root = read_tree(Path(path), errors)
    root = apply_overrides(root, overrides, errors)
    config = validate(root, errors)
    if errors or config is None:
        raise ConfigErrors(errors)
    origins = {key: node.origin for key, node in drop_cleared(root).walk()}
    return LoadedConfig(config, origins, Path(path))


def read_tree(path: Path, errors: list[ConfigError]) -> Node:
    """A file merged over its ``base_config`` chain; what cannot be read is left out, with mistakes in ``errors``."""
    return _read(path, (), None, errors)


def _read(path: Path, chain: tuple[Path, ...], asked: Origin | None, errors: list[ConfigError]) -> Node:
    """One file merged over its bases; an empty tree where it cannot be read."""
    nothing = Node({}, Origin(str(path)))
    here = path.resolve()
    if here in chain:
        names = " -> ".join(_short(link) for link in (*chain[chain.index(here) :], here))
        errors.append(ConfigError.at(asked, f"inherits from itself: {names}", "base_config"))
        return nothing
    try:
        text = read_file(path)
    except ConfigErrors as unreadable:
        errors.extend(_unreadable(path, asked, unreadable))
        return nothing
    before = len(errors)
    node = parse_text(text, str(path), errors)
    if node is None or not isinstance(node.value, dict):
        if len(errors) == before:
            what = "holds no keys" if node is None or node.value is None else "must be a mapping of keys"
            errors.append(ConfigError(what, file=str(path)))
        return nothing
    own = dict(node.value)
    merged = nothing
    for base, origin in _bases(own.pop("base_config", None), errors):
        below = Path(os.path.normpath(path.parent / base))
        merged = merge(merged, _read(below, (*chain, here), origin, errors))
    return merge(merged, Node(own, node.origin))


def _bases(node: Node | None, errors: list[ConfigError]) -> list[tuple[str, Origin]]:
    if node is None or node.value is None:
        return []
    items = node.value if isinstance(node.value, tuple) else (node,)
    found = []
    for item in items:
        if isinstance(item.value, str) and item.value and "\0" not in item.value:
            found.append((item.value, item.origin))
        else:
            errors.append(ConfigError.at(item.origin, "must be a file name or a list of them", "base_config"))
    return found


def _unreadable(path: Path, asked: Origin | None, error: ConfigErrors) -> list[ConfigError]:
    hint = ""
    if not path.exists() and path.parent.is_dir():
        siblings = sorted(file.name for file in path.parent.glob("*.y*ml"))
        hint = nearest(path.name, siblings[:20]) if siblings else ""
    reason = error.errors[0]
    if asked is None:
        return [ConfigError(reason.message, file=str(path), suggestion=reason.suggestion or hint)]
    return [ConfigError.at(asked, f"{path}: {reason.message}", "base_config", reason.suggestion or hint)]


def merge(below: Node, above: Node) -> Node:
    """Mappings are merged key by key; any other value of ``above`` replaces the one below."""
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    merged = dict(below.value)
    for key, child in above.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return Node(merged, above.origin)


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
