"""The vocabulary as a table: each key's type in words, default and meaning, read off the schema."""

import functools
from dataclasses import dataclass
from typing import Any

from meshwright.config.fields import Section
from meshwright.config.schema import Config


@dataclass(frozen=True)
class Key:
    """One key of the config.

    Attributes:
        path: dotted path; ``*`` stands for an index in a list of mappings.
        expects: the legal values in words.
        default: default value; None also where ``required``.
        section: whether the value is a mapping of further keys.
        nullable: whether null is a value of its own.
        choices: the words that are legal, if it is a choice.
    """

    path: str
    expects: str
    default: Any
    description: str
    section: bool = False
    nullable: bool = False
    required: bool = False
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


@functools.cache
def keys(root: type[Section] = Config) -> dict[str, Key]:
    """Every key of a kind of file by its path, in the order of the schema."""
    schema = root.model_json_schema()
    found: dict[str, Key] = {}
    _collect(schema, schema["$defs"], "", found)
    return found


def key_of(path: str, root: type[Section] = Config) -> Key | None:
    """The key that a path in a file stands for: list indices become ``*``."""
    return keys(root).get(".".join("*" if part.isdigit() else part for part in path.split(".")))


def _collect(schema: dict[str, Any], defs: dict[str, Any], prefix: str, found: dict[str, Key]) -> None:
    for name, prop in schema["properties"].items():
        path = f"{prefix}{name}"
        options = prop.get("anyOf", [prop])
        sections = [_resolve(option, defs) for option in options if "$ref" in option]
        found[path] = Key(
            path=path,
            expects=_words(prop),
            default=prop.get("default"),
            description=(sections[0] if sections else prop).get("description", ""),
            section=bool(sections),
            nullable={"type": "null"} in options,
            required=name in schema.get("required", ()),
            choices=tuple(str(word) for option in options for word in _choices(option)),
        )
        for section in sections:
            _collect(section, defs, f"{path}.", found)
        if "$ref" in (items := prop.get("items", {})):
            _collect(_resolve(items, defs), defs, f"{path}.*.", found)


def _resolve(reference: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    target: dict[str, Any] = defs[reference["$ref"].rpartition("/")[2]]
    return target


def _choices(schema: dict[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        words = [str(word) for option in schema["anyOf"] for word in _choices(option)]
        parts = [_words(option) for option in schema["anyOf"] if not _choices(option)]
        if words:
            parts.insert(0, words[0] if len(words) == 1 else f"one of {', '.join(words)}")
        return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"
    if choices := _choices(schema):
        words = [str(choice) for choice in choices]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if "$ref" in schema:
        return "a section (a mapping of keys)"
    match schema.get("type"):
        case "integer":
            return f"a whole number{_bounds(schema)}"
        case "number":
            return f"a number{_bounds(schema)}"
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case "object":
            numbers = {"type": "number"} in schema["additionalProperties"].get("anyOf", ())
            return f"a mapping of names to {'numbers' if numbers else 'words'}"
        case "array":
            return _list_words(schema)
    return "text"


def _list_words(schema: dict[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])} values, each {_words(schema['prefixItems'][0])}"
    items = schema["items"]
    if "$ref" in items:
        return "a list of paths or {path, weight}"
    return f"a list, each {_words(items)}"


def _bounds(schema: dict[str, Any]) -> str:
    signs = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
    limits = [f"{sign} {schema[name]:g}" for name, sign in signs if name in schema]
    return f" {' and '.join(limits)}" if limits else ""
