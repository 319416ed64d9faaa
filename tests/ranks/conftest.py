"""Two processes for all tests of a folder."""

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


@pytest.fixture
def both(worlds: list[World], tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Have two ranks run a function of `works`, or ``file.function``; a world with a rank that has died is not used."""
    if not worlds or not worlds[-1].alive:
        worlds.append(World(tmp_path_factory.mktemp("world")))

    def run(name: str, **given: object) -> list[Any]:
        file, _, function = name.rpartition(".")
        return worlds[-1].run(f"tests.ranks.{file or 'works'}", function, **given)

    return run
