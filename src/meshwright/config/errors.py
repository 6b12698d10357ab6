"""Config mistakes as values: what, where, and what would be legal."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """Where a value came from: a file with line and column (from 1), or a word such as ``command line``."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.source, self.line, self.column) if part is not None)


DEFAULT = Origin("default")
COMMAND_LINE = Origin("command line")


@dataclass(frozen=True)
class ConfigError:
    """One mistake.

    Attributes:
        message: what is wrong, naming the value.
        key: dotted path of the key, empty when the file as a whole is meant.
        file: the file, or ``command line``; None when neither named the key.
        line: line in the file, from 1.
        suggestion: what to write instead.
    """

    message: str
    key: str = ""
    file: str | None = None
    line: int | None = None
    suggestion: str = ""
    column: int | None = None

    @classmethod
    def at(cls, origin: Origin | None, message: str, key: str = "", suggestion: str = "") -> "ConfigError":
        """A mistake at an origin."""
        if origin is None or origin == DEFAULT:
            return cls(message, key, suggestion=suggestion)
        return cls(message, key, origin.source, origin.line, suggestion, origin.column)

    def __str__(self) -> str:
        place = str(Origin(self.file, self.line, self.column)) if self.file else ""
        text = ": ".join(part for part in (place, self.key, self.message) if part)
        return f"{text}; {self.suggestion}" if self.suggestion else text


class ConfigErrors(Exception):
    """Every mistake of one request, by file and line, the command line last. Prints one line per mistake."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        files = list(dict.fromkeys(error.file for error in errors))
        last = COMMAND_LINE.source
        unique = dict.fromkeys(errors)
        self.errors = sorted(unique, key=lambda e: (e.file == last, files.index(e.file), e.line or 0))
        super().__init__("\n".join(str(error) for error in self.errors))
