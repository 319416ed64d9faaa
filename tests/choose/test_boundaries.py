"""The boundaries of all runs that end with a call are worked out in one pass: as one by one."""

from __future__ import annotations

import random

import pytest
import torch

import autockpt
from tests.doors import ProfileIndex, entering_bytes, sibling_rows
from tests.rows import daily
from tests.toys.told import Told
from tests.zoo import DAILY, ZOO, build

LASTS = 6
"""Ends of runs that are looked at in each row of siblings."""


def power(n: int = 40) -> torch.nn.Module:
    """A long loop of operators in one forward; planning it took time with the cube of its length, and did not end."""

    def act(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            hidden = own.weight @ hidden
            hidden = hidden / hidden.norm()
        return hidden

    return Told(act, weight=torch.nn.Parameter(torch.eye(8)))


def hold(profile: autockpt.Profile) -> int:
    index, looked = ProfileIndex(profile), 0
    for row in sibling_rows(index, index.call_nodes):
        lasts = random.Random(0).sample(range(len(row)), min(LASTS, len(row)))
        for last, found in enumerate(entering_bytes(index, row)):
            for first in range(last + 1) if last in lasts else ():
                assert found[first] == index.total_bytes(index.boundary(tuple(row[first : last + 1])))
                looked += 1
    return looked


@pytest.mark.parametrize("name", daily(ZOO, DAILY))
def test_of_every_model(name: str) -> None:
    case = build(name, short=True)
    assert hold(autockpt.profile(case.model, case.kwargs, mode="fake"))


def test_of_a_long_loop_of_operators() -> None:
    assert hold(autockpt.profile(power(), torch.randn(8, 8), mode="fake")) > 200
