"""Writes docs/configuration.md from the schema: ``python -m meshwright.config.reference docs/configuration.md``."""

import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

from meshwright.config.corpus import CorpusConfig
from meshwright.config.corpus_flags import FLAGS
from meshwright.config.keys import Key, keys
from meshwright.config.validate import show
from meshwright.spec.model import ModelSpec
from meshwright.spec.presets import PRESETS

INTRODUCTION = """\
# Configuration

One YAML file describes a run. This page lists every key; it is generated from the schema by
`python -m meshwright.config.reference docs/configuration.md`.

## How a file is read

- An unknown key, a value of another type or a key written twice is refused, with file, line and column and what was
  probably meant. All mistakes are reported at once, with exit code 2, before anything starts.
- `base_config` names files to start from, relative to the file that names them. Sections are merged key by key, other
  values (lists too) are replaced. Later bases win over earlier ones, the file itself over all of them.
- `key.path=value`, `--key.path=value` and `--key.path value` on the command line win over every file.
  `dataset.paths.0.weight=0.5` reaches into a list.
- An explicit `null` clears an inherited value: the key has its default again, or is null where null is a value
  (`grad_clip: null` clips nothing).
- Numbers follow YAML 1.2: `1e-4` is a number, also in quotes where a number is meant; `yes`, `no`, `on`, `off` are
  words, not truth values; `1_000_000` is a million.
- Paths are relative to the working directory, except those of `base_config`.

`meshwright config check` finds mistakes and gives advice, `config show --origin` says where each value came from,
`config diff A B` what changed, `config show --from-log LOG` recovers the config of a run from its log.
"""

TABLE_HEAD = "| key | value | default | meaning |\n|---|---|---|---|"
# The schema's own default is null there: it means "not given".
MODEL_DEFAULTS = {f"model.{field.name}": field.default for field in fields(ModelSpec) if field.default is not MISSING}


def reference() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    known = list(keys().values())
    yield from _table("Top level", "", [key for key in known if "." not in key.path and not key.section])
    for section in (key for key in known if key.section):
        below = [key for key in known if key.path.rpartition(".")[0] == section.path]
        title = f"`{section.path}`"
        yield from _table(title, section.description, [key for key in below if not key.section])
        if section.path == "model":
            yield f"\nPresets: {', '.join(f'`{name}`' for name in PRESETS)}."
    for section in (key for key in known if "*" in key.path and not key.section):
        if section.name == "path":
            inside = section.path.rpartition(".")[0]
            below = [key for key in known if key.path.rpartition(".")[0] == inside]
            yield from _table(f"`{inside.removesuffix('.*')}`, each entry", "", below)


def _table(title: str, description: str, rows: list[Key]) -> Iterator[str]:
    yield f"\n## {title}\n"
    if description:
        yield f"{description}\n"
    yield TABLE_HEAD
    for key in rows:
        yield _row(key, key.name)


def corpus_table() -> str:
    """The keys of the file of a corpus, as docs/data-prepare.md has them."""
    rows = (f"| `{FLAGS[key.path]}` {_row(key, key.path)}" for key in keys(CorpusConfig).values() if not key.section)
    return "\n".join(["| option " + TABLE_HEAD.replace("\n|", "\n|---|", 1), *rows])


def _row(key: Key, name: str) -> str:
    return f"| `{name}` | {key.expects} | {_default(key)} | {key.description} |"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.path in MODEL_DEFAULTS:
        return f"the preset's, else `{show(MODEL_DEFAULTS[key.path])}`"
    return f"`{key.default if isinstance(key.default, str) else show(key.default)}`"


def main() -> None:
    """Print the page, or write it to the file that is named."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
    else:
        print(reference(), end="")


if __name__ == "__main__":
    main()
