"""Values from the command line: ``a.b=c``, ``--a.b=c`` and ``--a.b c``."""

import re
from collections.abc import Iterator, Sequence

from meshwright.config.errors import COMMAND_LINE, ConfigError
from meshwright.config.source import Node, parse_text

KEY = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\Z")


def apply_overrides(root: Node, overrides: Sequence[str], errors: list[ConfigError]) -> Node:
    """The tree with every override put in, in order. Mistakes are added to ``errors``."""
    for key, text in _pairs(overrides, errors):
        if key == "base_config":
            errors.append(_error("base_config can only stand in a file", key))
            continue
        found: list[ConfigError] = []
        value = parse_text(text, COMMAND_LINE.source, found)
        if found or value is None:
            hint = "write null to clear an inherited value"
            errors.append(_error(f"cannot read the value {text!r}", key, hint if not text else ""))
            continue
        root = _put(root, key.split("."), _from_command_line(value), key, errors)
    return root


def _pairs(overrides: Sequence[str], errors: list[ConfigError]) -> Iterator[tuple[str, str]]:
    tokens = iter(overrides)
    for token in tokens:
        key, equals, text = token.removeprefix("--").partition("=")
        if not KEY.match(key) or (not equals and not token.startswith("--")):
            errors.append(_error(f"cannot read {token!r}", suggestion="an override is written key.path=value"))
            continue
        if not equals:
            following = next(tokens, None)
            if following is None or following.startswith("--"):
                errors.append(_error("the value is missing", key, f"write {key}=VALUE"))
                continue
            text = following
        yield key, text


def _put(node: Node, path: list[str], value: Node, key: str, errors: list[ConfigError]) -> Node:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(node.value, tuple):
        if not head.isdigit() or int(head) >= len(node.value):
            errors.append(_error(f"the list has items 0 to {len(node.value) - 1}, not {head!r}", key))
            return node
        items = list(node.value)
        items[int(head)] = _put(items[int(head)], rest, value, key, errors)
        return Node(tuple(items), node.origin)
    children = dict(node.value) if isinstance(node.value, dict) else {}
    child = children.get(head, Node({}, COMMAND_LINE))
    children[head] = _put(child, rest, value, key, errors)
    return Node(children, node.origin)


def _from_command_line(node: Node) -> Node:
    """The same value with the command line as its place: a column inside one argument helps nobody."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _from_command_line(child) for key, child in value.items()}
    elif isinstance(value, tuple):
        value = tuple(_from_command_line(child) for child in value)
    return Node(value, COMMAND_LINE)


def _error(message: str, key: str = "", suggestion: str = "") -> ConfigError:
    return ConfigError(message, key, COMMAND_LINE.source, suggestion=suggestion)
