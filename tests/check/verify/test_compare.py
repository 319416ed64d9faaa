"""Two outcomes held against one another: what counts as the same, and how far apart they are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.doors import Difference, Observed, compare_outcomes

NAN = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)


def difference(one: Tensor | None, other: Tensor | None) -> Difference | None:
    found = compare_outcomes(1, [Observed("gradient", "w", one)], [Observed("gradient", "w", other)])
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).T,
        torch.randn(()),
        torch.zeros(0, 3),
        torch.tensor([math.nan, math.inf, -0.0]),
        torch.randn(3).bfloat16(),
        torch.randn(3).to(torch.float8_e4m3fn),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.tensor([True, False]),
        torch.randn(3, 4).to_sparse(),
        None,
    ],
    ids=["2-d", "turned", "scalar", "empty", "odd floats", "bf16", "float8", "conjugate", "bools", "sparse", "None"],
)
def test_the_same_is_the_same(value: Tensor | None) -> None:
    assert difference(value, value if value is None else value.clone()) is None


@pytest.mark.parametrize(
    ("one", "other", "count", "largest", "relative"),
    [
        (torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.5, 3.0]), 2, 1.0, 0.25),
        (torch.tensor([0.0, 0.0]), torch.tensor([0.0, -0.0]), 1, 0.0, None),
        (NAN[:1], NAN[1:], 1, None, None),
        (torch.tensor([1.0, math.inf]), torch.tensor([1.0, 2.0]), 1, None, None),
        (torch.tensor([1, -3]), torch.tensor([1, 3]), 1, 6.0, 2.0),
        (torch.tensor([True, False]), torch.tensor([True, True]), 1, 1.0, 1.0),
        (torch.tensor([3 + 4j]), torch.tensor([0j]), 1, 5.0, 1.0),
        (torch.tensor([2.0], dtype=torch.float8_e4m3fn), torch.tensor([1.0], dtype=torch.float8_e4m3fn), 1, 1.0, 0.5),
    ],
    ids=["floats", "signs of zero", "bits of NaN", "infinity", "ints", "bools", "complex", "float8"],
)
def test_how_far_apart(one: Tensor, other: Tensor, count: int, largest: float | None, relative: float | None) -> None:
    found = difference(one, other)
    assert found is not None
    assert (found.elements, found.different_elements, found.what) == (one.numel(), count, "")
    assert (found.largest_difference, found.relative_difference) == (largest, relative)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (None, "None instead of float32[2, 3]"),
        (torch.zeros(3, 2), "float32[3, 2] instead of float32[2, 3]"),
        (torch.zeros(2, 3).double(), "float64[2, 3] instead of float32[2, 3]"),
        (torch.zeros(2, 3).to_sparse(), "float32[2, 3] (sparse_coo) instead of float32[2, 3]"),
    ],
    ids=["None", "shape", "dtype", "layout"],
)
def test_what_cannot_be_compared_by_value(other: Tensor | None, what: str) -> None:
    found = difference(torch.zeros(2, 3), other)
    assert found is not None
    assert (found.what, found.different_elements) == (what, 0)


def test_tensors_that_only_one_run_has() -> None:
    one, two = Observed("output", "0", torch.zeros(1)), Observed("output", "1", torch.zeros(1))
    assert [(each.name, each.what) for each in compare_outcomes(1, [one], [two])] == [("0", "missing"), ("1", "new")]
