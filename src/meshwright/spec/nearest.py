"""Legal numbers near a requested one, for messages that say what would have worked."""

from collections.abc import Iterable


def divisors(number: int) -> tuple[int, ...]:
    """All positive divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def nearest(legal: Iterable[int], wanted: int) -> tuple[str, ...]:
    """Legal values as strings, nearest to the wanted one first, the smaller first at equal distance."""
    return tuple(str(value) for value in sorted(set(legal), key=lambda value: (abs(value - wanted), value)))


def nearest_multiples(wanted: int, step: int, *, at_least: int = 1) -> tuple[str, ...]:
    """The multiples of ``step`` just below and just above ``wanted``, nearest first.

    Multiples under ``at_least`` are left out; the smallest legal one is always offered.
    """
    smallest = -(-at_least // step) * step
    below = wanted // step * step
    return nearest({max(below, smallest), max(-(-wanted // step) * step, smallest)}, wanted)
