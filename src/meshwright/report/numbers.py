"""Numbers as people read them."""

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
WHOLE_BELOW = 10_000


def short(number: float | None) -> str:
    """A number in four characters or so: ``12.3 M``; whole below 10,000."""
    if number is None:
        return "?"
    if abs(number) < WHOLE_BELOW:
        return f"{number:,.0f}"
    size, unit = next((size, unit) for size, unit in UNITS if abs(number) >= size)
    return f"{number / size:.3g} {unit}" if abs(number) < 999.5 * size else f"{number / size:,.0f} {unit}"


def count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(part: float, whole: float) -> str:
    """A share with one place, such as ``<0.1 %``."""
    share = 100 * part / whole if whole else 0.0
    return "<0.1 %" if 0 < share < 0.05 else f"{share:.1f} %"
