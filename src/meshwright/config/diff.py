"""What changed between two runs, and what the change means."""

from dataclasses import dataclass
from typing import Any

from meshwright.config.run import Run
from meshwright.config.schema import Config
from meshwright.config.validate import show
from meshwright.spec.batch import batch_change_notice


@dataclass(frozen=True)
class Difference:
    """One key whose value differs."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {show(self.before)} -> {show(self.after)}"


def flat(config: Config) -> dict[str, Any]:
    """Every value of a config by dotted path, in the order of the schema. Lists stay whole."""
    found: dict[str, Any] = {}
    for name, value in config.model_dump(exclude={"base_config"}).items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            found[name] = value
    return found


def differences(before: Run, after: Run) -> list[Difference]:
    """Keys whose resolved values differ, in the order of the schema."""
    old, new = flat(before.config), flat(after.config)
    keys = dict.fromkeys([*old, *new])
    return [Difference(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def notices(before: Run, after: Run) -> list[str]:
    """Consequences that nobody typed: a global batch that changed under an unchanged learning rate."""
    notice = batch_change_notice(
        before.train.batch.global_batch_size,
        after.train.batch.global_batch_size,
        before.train.optimizer.learning_rate,
        after.train.optimizer.learning_rate,
    )
    return [notice] if notice else []
