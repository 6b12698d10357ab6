"""Config as text: YAML that reads back bit for bit, and the block of log lines it is recovered from."""

import hashlib
import re
from collections.abc import Collection
from typing import Any

import yaml

from meshwright.config.errors import ConfigError, ConfigErrors
from meshwright.config.schema import Config
from meshwright.config.source import ConfigDumper

GUTTER = "config| "
END = "# end of the resolved config"
BEGIN = re.compile(r"# resolved config, sha256 ([0-9a-f]{64})\Z")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class _Inline(dict[str, Any]):
    """A mapping that is written on one line."""


def _inline(dumper: ConfigDumper, value: _Inline) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=True)


def _list(dumper: ConfigDumper, value: tuple[Any, ...]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


def _word(dumper: ConfigDumper, value: str) -> yaml.Node:
    # A control character or line break would spread over several log lines; in double quotes it is escaped.
    style = None if value.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


ConfigDumper.add_representer(_Inline, _inline)
ConfigDumper.add_representer(tuple, _list)
ConfigDumper.add_representer(str, _word)


def config_text(config: Config, *, without: Collection[str] = ()) -> str:
    """YAML of every key: sections as blocks, one line per key."""
    values = config.model_dump(exclude={"base_config", *without})
    sections = {key: _lines(value) if isinstance(value, dict) else value for key, value in values.items()}
    text: str = yaml.dump(
        sections, Dumper=ConfigDumper, sort_keys=False, allow_unicode=True, width=float("inf"), default_flow_style=False
    )
    return text


def _lines(section: dict[str, Any]) -> dict[str, Any]:
    return {key: _one_line(value) for key, value in section.items()}


def _one_line(value: Any) -> Any:
    if isinstance(value, dict):
        return _Inline(value)
    return tuple(_one_line(item) for item in value) if isinstance(value, tuple) else value


def log_lines(text: str) -> list[str]:
    """The lines that put a config into a log. Each carries a gutter, so that prefixes and other ranks' lines
    between them do no harm, and the first a checksum, so that a damaged log is noticed."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    body = [f"# resolved config, sha256 {digest}", *text.splitlines(), END]
    return [GUTTER + line for line in body]


def text_from_log(log: str) -> str:
    """The newest whole config in a log.

    Raises:
        ConfigErrors: there is none, or what there is was cut or changed.
    """
    found: str | None = None
    problem = "holds no resolved config"
    digest = ""
    body: list[str] = []
    for line in ANSI.sub("", log).split("\n"):
        _, gutter, content = line.rstrip("\r").partition(GUTTER)
        if not gutter:
            continue
        if begin := BEGIN.match(content):
            digest, body = begin[1], []
            problem = "holds a resolved config whose end is missing"
        elif content == END and digest:
            text = "\n".join([*body, ""])
            if hashlib.sha256(text.encode()).hexdigest() == digest:
                found = text
            else:
                problem = "holds a resolved config whose checksum does not match: lines were lost or changed"
            digest = ""
        else:
            body.append(content)
    if found is None:
        raise ConfigErrors([ConfigError(problem, suggestion="output_dir holds the config as a file too")])
    return found
