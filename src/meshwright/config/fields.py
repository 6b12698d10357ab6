"""Field types of the schema. Only the two conversions below are made; everything else is strict."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from meshwright.config.source import FLOAT


class Section(BaseModel):
    """A part of the config: unknown keys are refused, types are exact, values never change."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def _quoted_number(value: Any) -> Any:
    """``"1e-4"`` in quotes is how people work around YAML 1.1; for a float it can only mean the number."""
    return float(value) if isinstance(value, str) and FLOAT.match(value) else value


def _whole_float(value: Any) -> Any:
    """``2e9`` tokens is a float to YAML and a whole number to everybody else."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_QUOTED = BeforeValidator(_quoted_number)

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
# Not a Literal: true and 1.0 equal 1, and would pass for a stage.
ZeroStage = Annotated[int, Field(ge=0, le=3)]
BigCount = Annotated[int, Field(ge=1), BeforeValidator(_whole_float)]
Positive = Annotated[float, Field(gt=0), _QUOTED]
NonNegative = Annotated[float, Field(ge=0), _QUOTED]
Share = Annotated[float, Field(ge=0, le=1), _QUOTED]
BelowOne = Annotated[float, Field(ge=0, lt=1), _QUOTED]
# Threads refuse to wait for much longer (threading.TIMEOUT_MAX), and more than a day is no limit.
Seconds = Annotated[float, Field(gt=0, le=1e5), _QUOTED]
Word = Annotated[str, Field(min_length=1)]


def entry(default: Any, description: str) -> Any:
    """A key with its default and the sentence that the reference prints."""
    return Field(default=default, description=description)
