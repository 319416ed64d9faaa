"""Checksums of tensors: equal for equal bits, whatever the layout, and different for whatever else."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.doors import (
    CHECKSUM_COLUMNS,
    Places,
    all_checksums_same,
    checksum_of_saved,
    layout_of,
    on_device,
    same_checksum,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.bool]
SIZES = st.one_of(
    st.integers(1, 40),
    st.sampled_from([CHECKSUM_COLUMNS - 1, CHECKSUM_COLUMNS, 2 * CHECKSUM_COLUMNS, 4 * CHECKSUM_COLUMNS + 3, 60_000]),
)


def values(size: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).mul(100).to(dtype)


def both(one: Tensor, other: Tensor) -> set[bool]:
    """What both ways say of two tensors: that of a CPU, and that of a device."""
    return {
        same_checksum(checksum_of_saved(one), checksum_of_saved(other)),
        same_checksum(on_device(one), on_device(other)),
    }


@given(SIZES, st.sampled_from(DTYPES), st.integers(0, 9))
@settings(deadline=None)
def test_equal_bits_have_the_same(size: int, dtype: torch.dtype, seed: int) -> None:
    tensor = values(size, dtype, seed)
    shifted = torch.cat([tensor[:1], tensor])[1:]  # other memory, and in it at another place
    assert both(tensor, shifted) == {True}


@given(SIZES, st.sampled_from(DTYPES), st.integers(0, 9), st.data())
@settings(deadline=None)
def test_one_changed_bit_is_seen(size: int, dtype: torch.dtype, seed: int, data: st.DataObject) -> None:
    tensor = values(size, dtype, seed)
    other = tensor.clone()
    octets = other.view(torch.uint8)
    place, bit = data.draw(st.integers(0, octets.numel() - 1)), data.draw(st.integers(0, 7))
    octets[place] ^= 1 << bit
    assert both(tensor, other) == {False}


SIGNED = [1000, 8 * 1000, 3 * 2048, 64 * 1024, 2 * CHECKSUM_COLUMNS]
"""Sizes of tensors with signs; the last has whole rows of words of eight bytes, an even number of them."""


@given(st.sampled_from(SIGNED), st.sampled_from(DTYPES[:4]), st.integers(0, 9))
@settings(deadline=None)
def test_swapped_values_swapped_rows_and_flipped_signs_are_seen(size: int, dtype: torch.dtype, seed: int) -> None:
    tensor = values(size, dtype, seed).abs() + 1
    swapped, rows = tensor.clone(), tensor[: size // 8 * 8].view(8, -1)
    swapped[0], swapped[-1] = tensor[-1], tensor[0]
    signs = torch.where(values(size, torch.float64, seed + 1) > 0, 1, -1).to(dtype)
    halves = torch.cat([-tensor[: size // 2], tensor[size // 2 :]])
    for other in (swapped, tensor * signs, -tensor, halves):
        assert both(tensor, other) == ({False} if not torch.equal(tensor, other) else {True})
    assert both(rows, rows.flip(0).contiguous()) == {False}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex128])
def test_what_lies_between_the_elements_of_a_view_counts_for_nothing(dtype: torch.dtype) -> None:
    whole = values(8 * 96, dtype, 0).view(8, 96)
    queries = whole[:, :32]
    before = checksum_of_saved(queries), on_device(queries)
    whole[:, 32:] = 0
    assert same_checksum(before[0], checksum_of_saved(queries)) and same_checksum(before[1], on_device(queries))
    whole[3, 3] += 1
    assert not same_checksum(before[0], checksum_of_saved(queries)) and not same_checksum(before[1], on_device(queries))


def test_minus_zero_is_not_zero_and_one_nan_is_not_another() -> None:
    zero, nan = torch.zeros(5), torch.full((5,), float("nan"))
    assert both(zero, -zero) == {False}
    other = nan.clone()
    other.view(torch.int32)[2] ^= 1
    assert both(nan, nan.clone()) == {True}
    assert both(nan, other) == {False}


def test_a_workspace_has_none_and_neither_has_what_bytes_do_not_tell() -> None:
    assert checksum_of_saved(torch.zeros(9, dtype=torch.uint8)) is None
    assert checksum_of_saved(torch.eye(3).to_sparse()) is None
    assert checksum_of_saved(torch.empty(3, device="meta")) is None


@pytest.mark.parametrize("size", [8, 600, 5 * CHECKSUM_COLUMNS])
def test_small_differences_of_neighbours_do_not_cancel(size: int) -> None:
    tensor = torch.arange(size, dtype=torch.int32)
    for here, there in ((3, -1), (1, -1), (5, -3), (1 << 31, 1 << 31), (-(1 << 31), 1 << 31)):
        other = tensor.long()
        other[0] += here
        other[1] += there
        assert both(tensor, other.to(torch.int32)) == {False}


def test_several_are_compared_at_once() -> None:
    one, other = torch.ones(5), torch.zeros(5)
    pairs = [
        (on_device(one), on_device(one)),
        (on_device(one), on_device(other)),
        (checksum_of_saved(one), checksum_of_saved(one)),
        (checksum_of_saved(one), None),
        (None, on_device(one)),
        (None, None),
        (on_device(other), on_device(other)),
    ]
    assert all_checksums_same(pairs) == [True, False, True, False, False, True, True]
    assert all_checksums_same([]) == []


@given(st.one_of(st.integers(1, 1 << 17), st.integers(1, 1 << 38), st.integers(1, 4000).map(lambda each: each * 521)))
@settings(deadline=None)
def test_rows_on_a_device_have_every_word_and_do_not_line_up(size_bytes: int) -> None:
    words, (rows, columns, step) = size_bytes // 8, layout_of(size_bytes)
    assert (rows - 1) * step + columns == words
    if rows == 1:
        assert words <= 3 * 521
    else:
        assert rows % 2 == 1
        assert 521 <= step <= columns <= 3 * 521
        assert size_bytes % step and math.gcd(step, math.factorial(46)) == 1


@given(st.lists(st.tuples(SIZES, st.sampled_from(DTYPES), st.booleans()), max_size=90), st.integers(1, 9))
@settings(deadline=None, max_examples=30)
def test_numbers_that_are_made_together_are_those_made_one_by_one(
    every: list[tuple[int, torch.dtype, bool]], seed: int
) -> None:
    places, tensors = Places(), []
    for size, dtype, changes in every:
        tensor = values(size, dtype, seed)
        place, expected = places.take(tensor), on_device(tensor)
        tensors.append((place, expected))
        if changes:  # what is written later counts for nothing
            tensor.zero_()
    places.settle()
    assert all(place.item() == expected.item() for place, expected in tensors)


@given(st.sampled_from(DTYPES[:5]), st.integers(25_000, 80_000), st.integers(0, 99), st.data())
@settings(deadline=None)
def test_two_swapped_values_are_seen_on_a_device_unless_a_multiple_of_the_step_is_between(
    dtype: torch.dtype, size: int, seed: int, data: st.DataObject
) -> None:
    tensor, other = (values(size, dtype, seed) for _ in range(2))
    here, there = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    other[here], other[there] = tensor[there], tensor[here]
    missed = (there - here) * tensor.itemsize % (8 * layout_of(tensor.nbytes).step) == 0
    if not torch.equal(tensor, other) and not missed:
        assert not same_checksum(on_device(tensor), on_device(other))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("every", [1, 2, 3, 4])
def test_signs_alone_are_seen_on_a_device(dtype: torch.dtype, every: int) -> None:
    """The highest bits of words: in a sum of an even number of them, no trace is left."""
    tensor = values(50_000, dtype, 0)
    for begin in range(every):
        for part in (slice(begin, None, every), slice(begin, 20_000, every)):
            other = tensor.clone()
            other[part] *= -1
            assert not same_checksum(on_device(tensor), on_device(other))
