"""The largest size that fits, over curves that are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doors import largest_fitting


@given(
    base=st.integers(10**3, 10**4),
    slope=st.integers(50, 500),
    square=st.integers(0, 5),
    budget=st.integers(1, 10**6),
    off=st.floats(0.7, 1.5),
    most=st.none() | st.integers(1, 300),
)
def test_it_is_the_largest_where_fake_and_measured_are_proportional(
    base: int, slope: int, square: int, budget: int, off: float, most: int | None
) -> None:
    def measured(size: int) -> int:
        return base + slope * size + square * size**2

    found = largest_fitting(lambda size: max(round(off * measured(size)), 1), measured, budget, most)
    assert found == 0 or measured(found) <= budget
    limit = most if most is not None else found + 3
    fits = [size for size in range(1, limit + 1) if measured(size) <= budget]
    # What fake recordings say is rounded by a byte and scaled: a sample more or less, where one so nearly fits.
    assert abs(found - max(fits, default=0)) <= 1


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_few_fake_recordings_and_fewer_measured(steps: int) -> None:
    fakes, measured = set[int](), set[int]()

    def fake(size: int) -> int:
        fakes.add(size)
        return 1000 * size + 3

    def real(size: int) -> int:
        measured.add(size)
        return 1100 * size + 50

    assert largest_fitting(fake, real, 1100 * steps + 60, None) == steps
    assert len(fakes) <= 12 and len(measured) <= 4
