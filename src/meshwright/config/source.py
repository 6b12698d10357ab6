"""YAML text as a tree in which every value knows its file, line and column.

PyYAML's own resolver follows YAML 1.1, where ``1e-4`` is a string, ``no`` is false, ``010`` is eight and
``1:30`` is ninety. Here the YAML 1.2 core schema holds, with ``_`` allowed between digits.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from meshwright.config.errors import ConfigError, ConfigErrors, Origin

Scalar = str | int | float | bool | None

DIGITS = r"[0-9]+(?:_[0-9]+)*"
INTEGER = re.compile(rf"[-+]?{DIGITS}\Z")
FLOAT = re.compile(rf"[-+]?(?:\.{DIGITS}|{DIGITS}(?:\.(?:{DIGITS})?)?)(?:[eE][-+]?[0-9]+)?\Z")
SPECIAL_FLOAT = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
BOOLEAN = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
MAX_NODES = 100_000
MAX_DEPTH = 20


@dataclass(frozen=True)
class Node:
    """A value and its place. Mappings hold Nodes by key, lists are tuples of Nodes."""

    value: "Scalar | dict[str, Node] | tuple[Node, ...]"
    origin: Origin

    def plain(self) -> Any:
        """The value without places; lists become tuples."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, tuple):
            return tuple(child.plain() for child in self.value)
        return self.value

    def walk(self, path: str = "") -> Iterator[tuple[str, "Node"]]:
        """Every node below this one with its dotted path."""
        children: list[tuple[str, Node]] = []
        if isinstance(self.value, dict):
            children = list(self.value.items())
        elif isinstance(self.value, tuple):
            children = [(str(index), child) for index, child in enumerate(self.value)]
        for key, child in children:
            below = f"{path}.{key}" if path else key
            yield below, child
            yield from child.walk(below)


class _CoreSchema:
    """The implicit types shared by reading and writing, so that what is written reads back the same."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    @classmethod
    def add(cls, tag: str, pattern: re.Pattern[str], first: str) -> None:
        for character in first:
            cls.yaml_implicit_resolvers.setdefault(character, []).append((tag, pattern))


_CoreSchema.add("tag:yaml.org,2002:bool", BOOLEAN, "tTfF")
_CoreSchema.add("tag:yaml.org,2002:int", INTEGER, "-+0123456789")
_CoreSchema.add("tag:yaml.org,2002:float", FLOAT, "-+.0123456789")
_CoreSchema.add("tag:yaml.org,2002:float", SPECIAL_FLOAT, "-+.")
_CoreSchema.add("tag:yaml.org,2002:null", NULL, "~nN")
_CoreSchema.yaml_implicit_resolvers[""] = [("tag:yaml.org,2002:null", NULL)]


class ConfigLoader(yaml.SafeLoader):
    """SafeLoader with the YAML 1.2 core types."""

    yaml_implicit_resolvers = _CoreSchema.yaml_implicit_resolvers


class ConfigDumper(yaml.SafeDumper):
    """SafeDumper that quotes exactly the strings that ConfigLoader would read as something else."""

    yaml_implicit_resolvers = _CoreSchema.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_file(path: Path, *, lenient: bool = False) -> str:
    """Text of a file. Raises ConfigErrors for anything that is not a readable text file.

    ``lenient`` reads logs, in which other programs may have left bytes that are not text.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigErrors([ConfigError("no such file", file=str(path))]) from None
    except IsADirectoryError:
        hint = "name the YAML file inside it"
        raise ConfigErrors([ConfigError("is a directory", file=str(path), suggestion=hint)]) from None
    except OSError as error:
        message = f"cannot be read ({error.strerror})"
        raise ConfigErrors([ConfigError(message, file=str(path))]) from None
    if lenient:
        return data.decode("utf-8", "replace")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not a text file: byte {error.start} is not UTF-8"
        raise ConfigErrors([ConfigError(message, file=str(path))]) from None
    if "\0" in text:
        raise ConfigErrors([ConfigError("not a text file: it holds NUL bytes", file=str(path))])
    return text


def parse_text(text: str, source: str, errors: list[ConfigError]) -> Node | None:
    """Compose YAML text into Nodes, adding mistakes to ``errors``; None where there is nothing to go on with."""
    try:
        root = yaml.compose(text, Loader=ConfigLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"not YAML: character #x{int(error.character):02x} is not allowed"
        errors.append(ConfigError(message, file=source, line=line))
        return None
    except yaml.MarkedYAMLError as error:
        errors.append(_syntax_error(error, source))
        return None
    except RecursionError:
        errors.append(ConfigError("not a config: nested too deeply", file=source))
        return None
    return None if root is None else _Builder(source, errors).build(root)


def _syntax_error(error: yaml.MarkedYAMLError, source: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or "syntax error"
    hint = ""
    if "'\\t'" in problem:
        hint = "indent with spaces, not tabs"
    elif "mapping values are not allowed" in problem:
        hint = "check the indentation, and quote a value that holds ': '"
    elif "single document" in (error.context or ""):
        problem = "more than one YAML document (a second '---')"
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return ConfigError(f"not valid YAML: {problem}", "", source, line, hint, column)


class _Builder:
    """Turns PyYAML nodes into Nodes, once per file."""

    def __init__(self, source: str, errors: list[ConfigError]) -> None:
        self.source, self.errors = source, errors
        self.open: set[int] = set()
        self.count = 0

    def origin(self, node: yaml.Node) -> Origin:
        mark = node.start_mark
        return Origin(self.source, mark.line + 1, mark.column + 1)

    def fail(self, node: yaml.Node, message: str, key: str = "", suggestion: str = "") -> None:
        self.errors.append(ConfigError.at(self.origin(node), message, key, suggestion))

    def build(self, node: yaml.Node, path: str = "", origin: Origin | None = None) -> Node:
        origin = origin or self.origin(node)
        self.count += 1
        # An alias may point at its own parent, or multiply a small file into a huge tree.
        if id(node) in self.open or self.count > MAX_NODES:
            message = "aliases (*name) that contain themselves or repeat without end"
            self.errors.append(ConfigError.at(origin, message, path))
            return Node(None, origin)
        if len(self.open) == MAX_DEPTH:
            self.errors.append(ConfigError.at(origin, f"nested deeper than {MAX_DEPTH} levels", path))
            return Node(None, origin)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return Node(self.mapping(node, path), origin)
            if isinstance(node, yaml.SequenceNode):
                items = (self.build(item, _join(path, str(i))) for i, item in enumerate(node.value))
                return Node(tuple(items), origin)
            return Node(self.scalar(node, path), origin)
        finally:
            self.open.discard(id(node))

    def mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Node]:
        seen: dict[str, Node] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.fail(key_node, "a key must be a plain word", path)
                continue
            key = str(key_node.value)
            where = _join(path, key)
            if key in seen:
                message = f"the key stands twice, first on line {seen[key].origin.line}"
                self.fail(key_node, message, where, "keep one of them")
                continue
            seen[key] = self.build(value_node, where, self.origin(key_node))
        return seen

    def scalar(self, node: yaml.Node, path: str) -> Scalar:
        text = str(node.value)
        match node.tag:
            case "tag:yaml.org,2002:null":
                return None
            case "tag:yaml.org,2002:bool" if BOOLEAN.match(text):
                return text.lower() == "true"
            case "tag:yaml.org,2002:int" if INTEGER.match(text) and len(text) < 100:
                return int(text)
            case "tag:yaml.org,2002:float" if FLOAT.match(text):
                return float(text)
            case "tag:yaml.org,2002:float" if SPECIAL_FLOAT.match(text):
                return float(text.replace(".", ""))
            case "tag:yaml.org,2002:str":
                return text
        kind = node.tag.rpartition(":")[2]
        self.fail(node, f"cannot take {text[:20]!r} as {kind}", path, "write the plain value")
        return None


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
