"""The parser of all verbs: options by their whole names, mistakes in one line."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that takes no abbreviations, and whose errors name the command that they are about."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the base, but what is not known is refused here, by the parser of the verb, which knows its options."""
        found, unknown = super().parse_known_args(args, namespace)
        if options := [word for word in unknown if word.startswith("-")]:
            self.error("; ".join(map(self._unknown, options)))
        if unknown:
            self.error(f"{' '.join(unknown)} stands apart from what it belongs to")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the mistake and end with code 2."""
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` tells more\n")

    def _unknown(self, word: str) -> str:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, 1, 0.6)
        return f"unknown option {name}{f', did you mean {near[0]}?' if near else ''}"
