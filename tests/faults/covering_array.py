"""Rows of values of which every two meet somewhere."""

from __future__ import annotations

import itertools

Row = tuple[str, ...]
Place = tuple[int, str]  # a factor by its number, and one of its values


def pairs_of(row: Row) -> set[tuple[Place, Place]]:
    return set(itertools.combinations(enumerate(row), 2))


def every_pair(factors: dict[str, tuple[str, ...]]) -> list[tuple[Place, Place]]:
    places = [[(i, value) for value in values] for i, values in enumerate(factors.values())]
    return [
        pair
        for some, others in itertools.combinations(places, 2)
        for pair in itertools.product(some, others)
    ]


def covering_array(factors: dict[str, tuple[str, ...]]) -> list[Row]:
    """Rows that hold every pair of values: each begins with a pair that is missing, and takes for each
    factor, in their order, the value that adds most pairs. The same array at every call."""
    missing = dict.fromkeys(every_pair(factors))
    rows: list[Row] = []
    while missing:
        first = next(iter(missing))
        chosen = dict(first)

        def added(place: Place, chosen: dict[int, str] = chosen) -> int:
            return sum(tuple(sorted((place, other))) in missing for other in chosen.items())

        for i, values in enumerate(factors.values()):
            if i not in chosen:
                # Of equals the one that comes next in turn, so that all are used.
                turn = len(rows) % len(values)
                in_turn = values[turn:] + values[:turn]
                chosen[i] = max(in_turn, key=lambda value, i=i: added((i, value)))  # type: ignore[misc]
        row = tuple(chosen[i] for i in range(len(factors)))
        for pair in pairs_of(row):
            missing.pop(pair, None)
        rows.append(row)
    return rows
