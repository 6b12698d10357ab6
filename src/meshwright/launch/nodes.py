"""How many nodes take part in a run."""

import re
from dataclasses import dataclass


class LaunchError(Exception):
    """The launch cannot start as asked; the message says what to change. Exit code 2."""


@dataclass(frozen=True)
class Nodes:
    """A fixed number of nodes, or an elastic one: any from ``fewest`` to ``most``."""

    fewest: int = 1
    most: int = 1

    @property
    def elastic(self) -> bool:
        return self.fewest < self.most

    def __str__(self) -> str:
        return f"{self.fewest}:{self.most}" if self.elastic else str(self.most)


def parse_nodes(text: str) -> Nodes:
    """``2``, or ``1:2`` for any number from 1 to 2. Raises LaunchError."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    fewest, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= fewest <= most:
        raise LaunchError(f"--nnodes {text}: must be 1 or more, or MIN:MAX as in 1:2")
    return Nodes(fewest, most)
