"""Two processes for all tests of a folder, and four for some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .world import World

Both = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[World]]:
    found: list[World] = []
    yield found
    for each in found:
        each.close()


@pytest.fixture(scope="session")
def fours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[World]]:
    found: list[World] = []
    yield found
    for each in found:
        each.close()


@pytest.fixture
def four(fours: list[World], tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Have four ranks run a function, as `both` has two."""
    return _in_a_world(fours, tmp_path_factory, 4)


@pytest.fixture
def both(worlds: list[World], tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Have two ranks run a function of `works`, or ``file.function``; a world with a rank that has died is not used."""
    return _in_a_world(worlds, tmp_path_factory, 2)


def _in_a_world(worlds: list[World], tmp_path_factory: pytest.TempPathFactory, ranks: int) -> Both:
    if not worlds or not worlds[-1].alive:
        worlds.append(World(tmp_path_factory.mktemp("world"), ranks))

    def run(name: str, **given: object) -> list[Any]:
        file, _, function = name.rpartition(".")
        return worlds[-1].run(f"tests.ranks.{file or 'works'}", function, **given)

    return run
