from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autockpt.solvers import BudgetError, format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("8GB", 8 * 10**9),
        ("8GiB", 8 * 2**30),
        ("8gib", 8 * 2**30),
        ("512MiB", 512 * 2**20),
        ("1.5 GB", 1_500_000_000),
        ("1.5GiB", 1_610_612_736),
        (" 40 kb ", 40_000),
        (".5 TiB", 2**39),
        ("1TB", 10**12),
        ("7", 7),
        ("7B", 7),
        ("0.3kB", 300),
        (8 * 10**9, 8 * 10**9),
        (1, 1),
    ],
)
def test_amounts_as_people_write_them(text: int | str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


NO_BUDGETS = (
    *("8 G B", "-8GB", "nan", "inf", "1e9", "0", "0GB", "", "GB", "8G", "8Gb8", "8,5GB", "8  GB", "eight", "0.1B"),
    *("0x10", "120%", "0%", "100.1%", "-5%", "٨GB", "8 ٪"),
)


@pytest.mark.parametrize("text", NO_BUDGETS)
def test_what_is_no_budget_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(BudgetError) as caught:
        parse_bytes(text, total_bytes=1000)
    assert repr(text) in str(caught.value)
    assert '"8GB"' in str(caught.value)


@pytest.mark.parametrize("amount", [0, -1, True, False, None, 8e9, float("nan"), b"8GB"])
def test_numbers_that_are_no_budget_are_refused(amount: int) -> None:
    with pytest.raises(BudgetError, match="accepted"):
        parse_bytes(amount)


def test_a_share_needs_a_total() -> None:
    assert parse_bytes("80%", total_bytes=1000) == 800
    assert parse_bytes("12.5 %", total_bytes=1000) == 125
    assert parse_bytes("100%", total_bytes=2**40 + 1) == 2**40 + 1
    with pytest.raises(BudgetError, match="needs a device whose memory is known"):
        parse_bytes("80%")


@given(st.integers(1, 2**62))
def test_bytes_as_text_are_read_back_exactly(n_bytes: int) -> None:
    assert parse_bytes(str(n_bytes)) == parse_bytes(f"{n_bytes}B") == n_bytes


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (2**40, "1.00 TiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_bytes_for_people(n_bytes: int, text: str) -> None:
    assert format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 µs"), (4e-6, "4 µs"), (0.0123, "12.3 ms"), (2.5, "2.5 s"), (99.96, "100 s"), (1234.5, "1234 s")],
)
def test_seconds_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
