"""Which search for what may be recomputed serves which other steps."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from autockpt import Profile
from autockpt._choose.candidates import find_candidates
from autockpt._run.governor.batch import Batch
from autockpt._run.governor.foresight import Known
from autockpt._run.governor.searched import Searched, searched_for
from tests.handmade import chain_profile


def steps(*shape: int, kind: tuple[Hashable, ...] = (), profile: Profile | None = None) -> Known:
    return Known(
        batch=Batch(kind=kind, shapes=(shape,)),
        gradient_bytes=0,
        profile=profile or chain_profile(),
        recorded=True,
    )


def searched(known: Known) -> Searched:
    return Searched(known=known, candidates=find_candidates(known.profile))


@pytest.mark.parametrize(
    ("known", "serves"),
    [
        (steps(4, 32), True),
        (steps(4, 64), True),
        (steps(4, 65), False),
        (steps(2, 16), True),
        (steps(4, 15), False),
        (steps(1, 128), False),  # as many numbers, but scores of attention sixteen times as large
        (steps(0, 32), False),
        (steps(4, 32, kind=("labels",)), False),
        (steps(4, 32, profile=chain_profile(3)), False),
    ],
)
def test_steps_of_one_structure_and_of_sizes_near_each_other(known: Known, serves: bool) -> None:
    search = searched(steps(4, 32))
    assert searched_for(known, [search]) == (search if serves else None)
