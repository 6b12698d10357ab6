"""All-pairs covers: few rows in which every two values that go together meet at least once."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]
Factors = Mapping[str, Sequence[str]]
Pair = frozenset[tuple[str, str]]
Constraint = Callable[[Mapping[str, str]], bool]

CANDIDATES = 24


def pairs_of(row: Mapping[str, str]) -> set[Pair]:
    """Every two (factor, value) items of a row."""
    return {frozenset(items) for items in combinations(row.items(), 2)}


def all_pairs(factors: Factors) -> set[Pair]:
    """Every two values of different factors, whether or not they go together."""
    found: set[Pair] = set()
    for one, other in combinations(factors, 2):
        found |= {frozenset({(one, a), (other, b)}) for a, b in product(factors[one], factors[other])}
    return found


def cover(factors: Factors, legal: Constraint, seeds: Iterable[Row] = ()) -> list[Row]:
    """Rows that hold every legal pair; the same rows every time.

    Args:
        factors: values by factor; where nothing is gained by another, the first value is taken.
        legal: whether a partly filled row breaks no rule yet; a rule speaks up once all its factors are filled.
        seeds: partly filled rows, each to be in the cover too.
    """
    chance = random.Random(0)
    missing = {pair for pair in all_pairs(factors) if _completed(dict(pair), factors, legal) is not None}
    rows = []
    waiting = list(seeds)
    while waiting or missing:
        starts = [waiting.pop(0)] if waiting else [dict(pair) for pair in sorted(missing, key=sorted)]
        candidates = [_grown(dict(chance.choice(starts)), factors, legal, missing, chance) for _ in range(CANDIDATES)]
        best = max(candidates, key=lambda row: len(pairs_of(row) & missing))
        missing -= pairs_of(best)
        rows.append({name: best[name] for name in factors})
    return rows


def _grown(row: Row, factors: Factors, legal: Constraint, missing: set[Pair], chance: random.Random) -> Row:
    """Fill a row factor by factor, each time with the value that meets most of the missing pairs."""
    for name in chance.sample(sorted(set(factors) - set(row)), len(factors) - len(row)):
        fitting = [v for v in factors[name] if _completed({**row, name: v}, factors, legal) is not None]
        gains = {v: sum(frozenset({(name, v), item}) in missing for item in row.items()) for v in fitting}
        row[name] = max(fitting, key=lambda value: gains[value])
    return row


def _completed(row: Row, factors: Factors, legal: Constraint) -> Row | None:
    """A legal full row that holds ``row``, or None."""
    if not legal(row):
        return None
    open_names = [name for name in factors if name not in row]
    if not open_names:
        return row
    for value in factors[open_names[0]]:
        if (full := _completed({**row, open_names[0]: value}, factors, legal)) is not None:
            return full
    return None
