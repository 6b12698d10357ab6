"""How far off predictions were on published measurements, by engine and device family.

The figures are in accuracy.json, written by ``python -m benchmarks.published.accuracy`` from the rows of other
people's measurements.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

from meshwright.plan.engines import ENGINES, Engine
from meshwright.spec.cluster import DeviceFamily

Figure = Literal["memory", "time"]


@dataclass(frozen=True, kw_only=True)
class ExpectedError:
    """Error of one figure over published rows.

    Attributes:
        mape: mean absolute error, per cent.
        p90: nine in ten rows are nearer than this, per cent.
        rows: number of them.
        basis: whose measurements these are.
        asked: what was asked about, where nobody has published runs of just that; else None.
    """

    figure: Figure
    mape: float
    p90: float
    rows: int
    basis: str
    asked: str | None = None

    def __str__(self) -> str:
        error = f"{self.figure} off by {self.mape:.1f} % on average, 9 in 10 within {self.p90:.0f} %"
        if self.asked is None:
            return f"{error} ({self.rows} published runs of {self.basis})"
        return f"{error} ({self.rows} published runs of {self.basis}; there are none of {self.asked})"


def expected_error(
    engine: Engine, family: DeviceFamily, figure: Figure, *, adapters: bool = False
) -> ExpectedError | None:
    """The error to expect, from the nearest measurements there are; None where there are none.

    Nearest first: this engine on this family of devices, engines that hold their states alike on it, this engine
    on any family, engines alike on any.
    """
    alike = [profile.name for profile in ENGINES if _states(profile) == _states(engine)]
    table = {profile.name: _table().get(profile.name + (" adapters" if adapters else ""), {}) for profile in ENGINES}
    families = sorted({name for row in table.values() for name in row})
    for engines, places in (([engine.name], [family]), (alike, [family]), ([engine.name], families), (alike, families)):
        found = [
            (name, place, table[name][place][figure])
            for name in engines
            for place in places
            if figure in table.get(name, {}).get(place, {})
        ]
        if found:
            name, place, values = max(found, key=lambda item: item[2]["n"])
            kind = "adapters with " if adapters else ""
            title = next(profile.title for profile in ENGINES if profile.name == name)
            same = (name, place) == (engine.name, family)
            return ExpectedError(
                figure=figure,
                mape=values["mape"],
                p90=values["p90"],
                rows=values["n"],
                basis=f"{kind}{title} on {place}",
                asked=None if same else f"{engine.title} on {family}",
            )
    return None


def _states(engine: Engine) -> tuple[str, float, float, float]:
    """How an engine holds and shards the states of training."""
    return engine.family, engine.weight_bytes, engine.gradient_bytes, engine.optimizer_bytes


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    text = resources.files("meshwright.plan").joinpath("accuracy.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return table
