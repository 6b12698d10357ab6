"""The fitted constants of the time model, at most eight for an engine on a device family.

They are fitted by ``benchmarks/published/fit_time.py`` and stored in ``constants.json`` as
``{engine: {family: {name: value}}}``. An engine or family that was not fitted reads the ``default`` entry.
"""

import json
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the data sheet does not say of a device under an engine.

    Attributes:
        matmul: share of the peak rate that a matrix product of unlimited size reaches.
        bandwidth: share of the data sheet's memory bandwidth that elementwise kernels reach.
        attention: share of the peak rate that a flash attention kernel reaches in forward.
        launch: seconds of host time per kernel, the framework's own code included.
        message: seconds of host time per collective or send beside its kernels.
        network: share of the link model's bandwidth that collectives reach while training.
        overlap: share of the compute behind which messages that an engine overlaps really travel.
        jitter: share of the shorter of device and host time that adds to the longer in a pass with tensor-parallel
            messages: each waits for the slowest rank, and ranks lag by turns.
        stall: slow steps of the network that launching a tensor-parallel message takes per rank, on node sets whose
            measured collectives show a network slower to answer than its data sheet says; no part elsewhere.
    """

    matmul: float
    bandwidth: float
    attention: float
    launch: float
    message: float
    network: float
    overlap: float
    jitter: float
    stall: float


NAMES: tuple[str, ...] = tuple(field.name for field in fields(Constants))


@lru_cache
def table() -> dict[str, dict[str, dict[str, float]]]:
    """The stored constants, by engine and device family."""
    return json.loads(files(__package__).joinpath("constants.json").read_text())  # type: ignore[no-any-return]


@lru_cache
def constants(engine: str, family: str) -> Constants:
    """Constants of an engine on a device family.

    What was fitted for the pair comes first; then the defaults of the family, then those of all families: how fast a
    device multiplies depends more on the device than on the framework.
    """
    defaults = table()["default"]
    values = defaults["default"] | defaults.get(family, {}) | table().get(engine, {}).get(family, {})
    return Constants(**values)
