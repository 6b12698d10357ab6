"""Turns a tree into a `Config`, and pydantic's complaints into ours: one per key, with place and hint."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from meshwright.config import hints
from meshwright.config.errors import ConfigError, Origin
from meshwright.config.fields import Section
from meshwright.config.keys import Key, key_of
from meshwright.config.schema import Config
from meshwright.config.source import Node

Kind = TypeVar("Kind", bound=Section)

# Characters of a wrong value that a message quotes.
LONGEST = 100


def validate(root: Node, errors: list[ConfigError]) -> Config | None:
    """The typed config of a run, or None with every mistake added to ``errors``."""
    return validate_as(Config, root, errors)


def validate_as(kind: type[Kind], root: Node, errors: list[ConfigError]) -> Kind | None:
    """The typed content of a file of some kind, or None with every mistake added to ``errors``."""
    cleared = drop_cleared(root, kind)
    tree = cleared.plain()
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        origins = {path: node.origin for path, node in cleared.walk()}
        errors.extend(_explain(error.errors(include_url=False), tree, origins, kind))
        return None


def drop_cleared(node: Node, kind: type[Section] = Config, path: str = "") -> Node:
    """The tree without the keys that an explicit null sends back to their default.

    Where null is a value of its own (``grad_clip: null``) it stays.
    """
    if isinstance(node.value, tuple):
        items = (drop_cleared(child, kind, f"{path}.{i}") for i, child in enumerate(node.value))
        return Node(tuple(items), node.origin)
    if not isinstance(node.value, dict):
        return node
    kept = {}
    for name, child in node.value.items():
        below = f"{path}.{name}" if path else name
        key = key_of(below, kind)
        if child.value is None and key is not None and not key.nullable and not key.required:
            continue
        kept[name] = drop_cleared(child, kind, below)
    return Node(kept, node.origin)


def _explain(
    details: Iterable[Any], tree: Any, origins: Mapping[str, Origin], kind: type[Section]
) -> list[ConfigError]:
    found: dict[str, ConfigError] = {}
    for detail in details:
        path = _path(detail["loc"], tree, missing=detail["type"] == "missing")
        found.setdefault(path, _error(path, detail, origins, kind))
    # A union reports each of its branches: the deepest path is the one that tells most.
    deepest = [path for path in found if not any(other.startswith(f"{path}.") for other in found)]
    return [found[path] for path in deepest]


def _path(location: tuple[int | str, ...], tree: Any, missing: bool) -> str:
    parts: list[str] = []
    for part in location:
        in_mapping = isinstance(tree, dict) and part in tree
        in_list = isinstance(tree, tuple) and isinstance(part, int) and part < len(tree)
        if not (in_mapping or in_list):
            continue
        tree = tree[part]
        parts.append(str(part))
    if missing and isinstance(tree, dict):
        parts.append(str(location[-1]))
    return ".".join(parts)


def _error(path: str, detail: Any, origins: Mapping[str, Origin], kind: type[Section]) -> ConfigError:
    origin = origin_of(path, origins)
    if detail["type"] == "extra_forbidden":
        return ConfigError.at(origin, "unknown key", path, hints.for_unknown_key(path, kind))
    key = _nearest_key(path, kind)
    if detail["type"] == "missing" and isinstance(detail["input"], dict):
        return ConfigError.at(origin, "is missing", path, f"it is {key.expects}" if key else "")
    if detail["type"] == "string_unicode":
        return ConfigError.at(origin, f"must be UTF-8, not {json.dumps(detail['input'])}", path)
    expects = key.expects if key else "another type"
    value = detail["input"]
    written = show(value) if len(show(value)) <= LONGEST else f"{show(value)[:LONGEST]}..."
    hint = hints.for_value(key, value) if key else ""
    return ConfigError.at(origin, f"must be {expects}, not {written}", path, hint)


def _nearest_key(path: str, kind: type[Section]) -> Key | None:
    """The key of a path, or of what it is an item of."""
    while path and (key := key_of(path, kind)) is None:
        path = path.rpartition(".")[0]
    return key if path else None


def origin_of(path: str, origins: Mapping[str, Origin]) -> Origin | None:
    """Place of a key, or of the nearest enclosing one that was written down."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return None


def show(value: object) -> str:
    """A value as it is written in YAML, short."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return f"{{{', '.join(f'{key}: {show(item)}' for key, item in value.items())}}}"
        case tuple() | list():
            return f"[{', '.join(show(item) for item in value)}]"
    return str(value)
