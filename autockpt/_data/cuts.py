"""Where the replay of a segment goes in parts: a level for each of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from ..solvers.units import shown
from .errors import InvalidFile

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


def refuse_cuts(cuts: Sequence[int], calls: Sequence[str], *, units: bool, moves: bool) -> None:
    """Refuse cuts that are not those of a replay in parts.

    Args:
        cuts: a level for each call.
        calls: the calls of the segment.
        units: whether it keeps or skips some.
        moves: whether something of it waits off the device.

    Raises:
        InvalidFile: they are not.
    """
    length, name = len(calls), shown(calls[0])
    if len(cuts) != length or cuts[0] or not any(cuts) or max(cuts) >= length:
        raise InvalidFile(
            f"the replay of the segment of {name} cannot go in parts by the cuts {shown(list(cuts))}: there is one for "
            f"each of its {length} calls, 0 for the first, a level below {length} where a part begins, and some part "
            "does"
        )
    for what, found in (("keeps or skips units", units), ("moves tensors", moves)):
        if found:
            raise InvalidFile(f"the segment of {name} {what}, so its replay cannot go in parts: leave out its cuts")
