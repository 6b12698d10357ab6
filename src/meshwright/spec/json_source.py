"""Typed reading of a JSON object of others, with refusals that name file and key."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JsonSource:
    """A JSON object, or one inside it; every reader raises ValueError with path, key and what is legal.

    Attributes:
        path: the file.
        values: the object.
        prefix: dotted path of this object inside the file, with a dot at its end, or nothing.
    """

    path: Path
    values: dict[str, Any]
    prefix: str = ""

    @classmethod
    def open(cls, path: Path) -> "JsonSource":
        """Parse a file, or the config.json inside a directory."""
        path = path / "config.json" if path.is_dir() else path
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"{path}: is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"{path}: holds no JSON object")
        return cls(path, values)

    def inner(self, key: str) -> "JsonSource":
        """The object under a key, empty where it is absent or null."""
        values = self.values.get(key) or {}
        if not isinstance(values, dict):
            raise self.refusal(key, f"{values!r} is no object", "null")
        return JsonSource(self.path, values, f"{self.prefix}{key}.")

    def refusal(self, key: str, problem: str, legal: str) -> ValueError:
        """The error to raise for a key."""
        return ValueError(f"{self.path}: {self.prefix}{key}: {problem}; legal: {legal}")

    def choice(self, key: str, legal: tuple[str, ...]) -> str:
        """One of a few strings."""
        if (value := self.values.get(key)) not in legal:
            raise self.refusal(key, f"{value!r} is not supported", ", ".join(legal))
        return str(value)

    def must_be(self, table: Mapping[str, tuple[object, ...]]) -> None:
        """Refuse every key that is given with another value than those at which it changes nothing."""
        for key, legal in table.items():
            if self.values.get(key) is not None and self.values[key] not in legal:
                offered = ", ".join(map(repr, legal)) or "null"
                raise self.refusal(key, f"{self.values[key]!r} is not supported", offered)

    def only(self, known: Iterable[str]) -> None:
        """Refuse keys that nobody here knows the meaning of."""
        for key in sorted(set(self.values) - set(known)):
            if self.values[key] is not None:
                raise self.refusal(key, f"{self.values[key]!r} is not supported", "null")

    def size(self, key: str, default: int | None = None, *, at_least: int = 1) -> int:
        """A whole number; no default means it must be there."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            problem = "is missing" if value is None else f"{value!r} is no size"
            raise self.refusal(key, problem, f"{at_least} or more")
        return value

    def number(self, key: str, default: float | None) -> float:
        """A number; no default means it must be there."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.refusal(key, "is missing" if value is None else f"{value!r} is no number", "a number")
        return float(value)

    def flag(self, key: str) -> bool:
        """A truth value, false where it is absent or null."""
        value = self.values.get(key) or False
        if not isinstance(value, bool):
            raise self.refusal(key, f"{value!r} is no truth value", "true, false")
        return value
