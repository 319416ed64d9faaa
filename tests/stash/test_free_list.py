"""The free list against a model: what it gives out never overlaps, and whatever is given back is used again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.doors import FreeList

SIZES = st.lists(st.one_of(st.integers(1, 3), st.integers(0, 40), st.tuples(st.integers(0, 50))), max_size=60)
"""A size to allocate, often one that some hole has exactly; or the number of what is to be freed."""


@given(SIZES)
def test_spans_never_overlap_and_what_is_freed_is_used_first(steps: list[int | tuple[int]]) -> None:
    spans = FreeList()
    taken: list[tuple[int, int]] = []
    for step in steps:
        if isinstance(step, tuple):
            if taken:
                spans.free(*taken.pop(step[0] % len(taken)))
        else:
            used = {byte for place, size in taken for byte in range(place, place + size)}
            end = max(used, default=-1) + 1
            free = [at for at in range(end + 1) if not used & set(range(at, at + step))]
            place = spans.allocate(step)
            if step:
                assert place == free[0], "the first hole that is large enough, merged from neighbours, or the end"
            taken.append((place, step))
        assert spans.used_bytes == sum(size for _, size in taken)
        assert spans.end_bytes == max((place + size for place, size in taken if size), default=0)


@given(st.lists(st.integers(1, 30), min_size=1), st.randoms())
def test_all_that_is_freed_is_one_space_again(sizes: list[int], random: object) -> None:
    spans = FreeList()
    taken = [(spans.allocate(size), size) for size in sizes]
    random.shuffle(taken)  # type: ignore[attr-defined]
    for place, size in taken:
        spans.free(place, size)
    assert (spans.end_bytes, spans.used_bytes) == (0, 0)
    assert spans.allocate(sum(sizes)) == 0
