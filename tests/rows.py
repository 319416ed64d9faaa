"""Rows of parametrized tests: which run with the suite, and which in the sweep alone. Needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pytest

__all__ = ["crossed", "daily", "swept"]


def daily(values: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """Return values to parametrize a test by: the `chosen` ones run with the suite, the others in the sweep."""
    return [each if each in chosen else pytest.param(each, marks=pytest.mark.sweep) for each in values]


def swept(names: str, *rows: tuple[Any, ...], kept: int) -> pytest.MarkDecorator:
    """Parametrize a test: the first rows run with the suite, the others in the sweep."""
    marked = [pytest.param(*row, marks=[] if i < kept else pytest.mark.sweep) for i, row in enumerate(rows)]
    return pytest.mark.parametrize(names, marked)


def crossed(**axes: Mapping[str, Any] | Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by all that axes cross to: the sweep runs every row, the suite a Latin square of them.

    In that each value comes, and of three axes each two values of different axes come together.

    Args:
        **axes: the values of each argument, by their names where they have names of their own.
    """
    named = [_named(each) for each in axes.values()]
    fewest = min(map(len, named))
    rows = []
    for row in itertools.product(*map(enumerate, named)):
        everyday = sum(number for number, _ in row) % fewest == 0
        name = "-".join(name for _, (name, _) in row)
        values = (value for _, (_, value) in row)
        rows.append(pytest.param(*values, id=name, marks=() if everyday else pytest.mark.sweep))
    return pytest.mark.parametrize(tuple(axes), rows)


def _named(values: Mapping[str, Any] | Sequence[Any]) -> list[tuple[str, Any]]:
    if isinstance(values, Mapping):
        return [*values.items()]
    return [(getattr(value, "__name__", str(value)), value) for value in values]
