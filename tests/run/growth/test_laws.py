"""Laws of one number: exact for pure powers, never too low between two sizes, never falling."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autockpt import GrowthError
from autockpt._run.growth.laws import Laws, sized

numbers = st.integers(1, 4096)
bytes_ = st.integers(0, 10**12)
seconds = st.floats(0, 1e4)


@st.composite
def rising(draw: st.DrawFn, n: int) -> list[int]:
    return sorted(draw(st.lists(numbers, min_size=n, max_size=n, unique=True)))


@given(rising(2), numbers, st.integers(1, 10**6), st.integers(0, 2))
def test_powers_are_exact_at_any_size(sizes: list[int], wanted: int, factor: int, power: int) -> None:
    one, other = sizes
    assert laws(sizes, wanted).bytes(factor * one**power, factor * other**power) == factor * wanted**power


@given(rising(2), numbers, bytes_, st.integers(1, 10**6))
def test_an_offset_and_a_multiple_is_exact_at_any_size(sizes: list[int], wanted: int, offset: int, factor: int) -> None:
    one, other = (offset + factor * size for size in sizes)
    assert laws(sizes, wanted).bytes(one, other) == offset + factor * wanted


@given(rising(2), numbers, st.integers(1, 64), st.integers(1, 10**6))
def test_a_few_less_than_the_size_is_exact_beyond_sizes_that_are_not_few(
    sizes: list[int], wanted: int, missing: int, factor: int
) -> None:
    """Labels shifted by one, convolutions without padding; nearer to the size itself than to its square."""
    one, other = (factor * (size - missing) for size in sizes)
    assume(sizes[0] > missing and wanted >= sizes[0])
    assume(Fraction(other, one) ** 2 < Fraction(sizes[1], sizes[0]) ** 3)
    assert laws(sizes, wanted).bytes(one, other) == factor * (wanted - missing)


@given(rising(2), numbers, st.integers(1, 10**4), st.integers(1, 10**6))
def test_an_offset_and_a_multiple_of_the_square_is_exact_beyond_sizes(
    sizes: list[int], wanted: int, offset: int, factor: int
) -> None:
    one, other = (offset + factor * size**2 for size in sizes)
    assume(not sizes[0] <= wanted <= sizes[1])
    assume(Fraction(other, one) ** 2 > Fraction(sizes[1], sizes[0]) ** 3)
    assert laws(sizes, wanted).bytes(one, other) == offset + factor * wanted**2


@given(rising(3), bytes_, st.integers(0, 10**9), st.integers(0, 10**6))
def test_no_sum_of_powers_is_underestimated_between_two_sizes(
    sizes: list[int], offset: int, linear: int, square: int
) -> None:
    one, between, other = (offset + linear * size + square * size**2 for size in sizes)
    found = laws(sizes[::2], sizes[1]).bytes(one, other)
    assert between <= found <= other


@given(rising(4), bytes_, bytes_)
def test_bytes_never_fall_where_they_rose_and_meet_what_was_recorded(sizes: list[int], one: int, other: int) -> None:
    one, other = sorted((one, other))
    found = [laws(sizes[1:3], size).bytes(one, other) for size in sizes]
    assert found == sorted(found)
    assert found[0] >= 0
    assert found[1:3] == [one, other]
    turned = [laws(sizes[2:0:-1], size).bytes(other, one) for size in sizes]
    assert turned == found


@given(rising(4), bytes_, bytes_)
def test_bytes_that_shrank_stay_what_they_were_beyond_the_sizes(sizes: list[int], one: int, other: int) -> None:
    one, other = sorted((one, other), reverse=True)
    found = [laws(sizes[1:3], size).bytes(one, other) for size in sizes]
    assert found == [one, one, other, other]


@given(rising(4), seconds, seconds)
def test_seconds_never_fall_nor_are_negative(sizes: list[int], one: float, other: float) -> None:
    found = [laws(sizes[1:3], size).seconds(one, other) for size in sizes]
    assert found[0] >= 0
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(found))
    if one <= other:
        assert found[1:3] == pytest.approx([one, other])
    else:
        assert found == [pytest.approx((one + other) / 2)] * 4


@given(rising(2), numbers, st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_seconds_of_the_host_and_of_the_size_add_up(sizes: list[int], wanted: int, host: float, own: float) -> None:
    one, other = (host + own * size for size in sizes)
    assert laws(sizes, wanted).seconds(one, other) == pytest.approx(host + own * wanted)


@pytest.mark.parametrize("power", [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("second", [(4, 288), (4, 32), (6, 192)], ids=str)
def test_two_dimensions_are_told_apart_by_their_ratios(power: tuple[int, int], second: tuple[int, int]) -> None:
    def power_of(size: tuple[int, int]) -> int:
        return math.prod((12 * size[0] ** power[0], size[1] ** power[1]))

    first, wanted = (2, 96), (16, 100)
    assert Laws(first, second, wanted).bytes(power_of(first), power_of(second)) == power_of(wanted)


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((2, 128), (4, 128), (4, 256)),  # nothing tells what the length does
        ((2, 128), (4, 256), (2, 256)),  # which of the two dimensions it was
        ((2, 128), (4, 64), (4, 128)),  # what is constant may be a product
        ((2, 128), (4, 512), (4, 256)),  # a length may be the square of the number of samples
    ],
    ids=str,
)
def test_sizes_that_do_not_tell_are_refused(
    first: tuple[int, int], second: tuple[int, int], wanted: tuple[int, int]
) -> None:
    with pytest.raises(GrowthError, match="ratio of its own"):
        Laws(first, second, wanted)


def test_dimensions_that_vary_by_one_ratio_may_go_on_together() -> None:
    assert Laws((2, 128), (4, 256), (8, 512)).bytes(1000, 4000) == 16000
    assert Laws((2, 128), (4, 128), (6, 128)).bytes(1000, 2000) == 3000


@pytest.mark.parametrize("size", [0, -1, 1.5, "4", (), (4, 0), [4]], ids=repr)
def test_what_is_no_size(size: object) -> None:
    with pytest.raises(GrowthError, match="positive whole number"):
        sized(size)


def laws(sizes: list[int], wanted: int) -> Laws:
    first, second = sizes
    return Laws((first,), (second,), (wanted,))
