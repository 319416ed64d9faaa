"""Whatever the loop, a budget is held, changes no bit, or is said not to be held.

python -m tests.fuzz loops 200     the same with more
"""

from __future__ import annotations

from collections import Counter

from tests.fuzz.run import fuzz_loops

CASES = 6
"""Drawn with the suite; each trains three times."""


def test_any_loop() -> None:
    found: Counter[str] = fuzz_loops(CASES)
    assert found.total() == CASES
    assert found["within"] > 0, found
