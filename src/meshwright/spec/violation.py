"""A broken rule, told so that config can join it to a file and a line."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One rule that the request breaks.

    Attributes:
        key_path: the config key to change, dotted (``parallel_config.model_parallel``).
        message: what is wrong, with both numbers.
        legal: the values that would be legal, nearest first, as short strings; may be empty.
    """

    key_path: str
    message: str
    legal: tuple[str, ...] = ()

    def __str__(self) -> str:
        legal = f" Legal: {', '.join(self.legal)}." if self.legal else ""
        return f"{self.key_path}: {self.message}.{legal}"
