"""Where the replay of a segment goes in parts: a level for each of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

Level = Annotated[int, msgspec.Meta(ge=0, le=64)]
"""0, or that of the part that begins with a call: one level more, and every call before runs once more."""


def parts_of(cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the outermost parts, each from which call up to which one; one part where nothing is cut."""
    level = min((each for each in cuts if each), default=0)
    return [*pairwise([0, *(place for place, each in enumerate(cuts) if each == level and level), len(cuts)])]


def depth_of(cuts: Sequence[int]) -> int:
    """Return how many levels of recomputing there are: 1 where nothing is cut, and one more for parts in parts."""
    if not any(cuts):
        return 1
    return 1 + max(depth_of((0, *cuts[first + 1 : stop])) for first, stop in parts_of(cuts))
