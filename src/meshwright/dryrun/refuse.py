"""What a dry run cannot simulate, refused by name."""

from meshwright.spec import rules
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.support import unsupported
from meshwright.spec.training import TrainSpec
from meshwright.spec.violation import Violation


class DryRunRefused(ValueError):
    """The run cannot be simulated; ``violations`` say why."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("\n".join(map(str, violations)))
        self.violations = violations


def check(model: ModelSpec, layout: Layout, train: TrainSpec, rank: int) -> None:
    """Raise `DryRunRefused` for what training would refuse too, and for what only a dry run cannot do."""
    found = rules.violations(model, layout, train, layout.world_size) + unsupported(model, layout, train)
    if train.compile:
        message = "a dry run of compiled blocks is not supported: which results a compiler keeps is not known before"
        found.append(Violation(key_path="train.compile", message=message, legal=("false, whose memory is larger",)))
    if found:
        raise DryRunRefused(found)
    if not 0 <= rank < layout.world_size:
        raise ValueError(f"rank {rank} is outside 0..{layout.world_size - 1}")
