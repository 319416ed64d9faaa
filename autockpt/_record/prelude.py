"""What a loop makes before it calls the model: targets, sums that begin at zero, what a model holds that runs first.

    step ends │ made: 64 K, 4, 8 M │ next step begins      seen on the tape, which goes on till then
    this step │ had:  64 K, 4      │ went meanwhile        seen by weak references: these have lifetimes of their own

What was made and has no like among what went stands in the whole step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .._device import Event


def made_since(events: Iterable[Event], last: int, others: frozenset[int]) -> list[int]:
    """Return the sizes of what was made since a step was over and is alive as the next one begins.

    Args:
        events: of the tape.
        last: the marker with which the step is over.
        others: storages that count elsewhere: what the next forward is given, gradients.
    """
    over, alive = False, dict[int, int]()
    for event in events:
        if event.kind == "mark":
            over = over or event.key == last
        elif event.kind == "free":
            alive.pop(event.key, None)
        elif over:
            alive[event.key] = event.bytes
    return [size for key, size in alive.items() if key not in others]


def matched(made: Iterable[int], went: Mapping[int, int]) -> tuple[dict[int, int], list[int]]:
    """Tell what of `made` has its like in the step that was recorded.

    Args:
        made: sizes of what was made for the next step.
        went: sizes of what was there before this step and went in it, by storage.

    Returns:
        Those of `went` that are such, by storage; and the sizes that have no like.
    """
    left, like = Counter(made), dict[int, int]()
    for key, size in went.items():
        if left[size] > 0:
            left[size] -= 1
            like[key] = size
    return like, list(left.elements())


def unlike_bytes(made: Iterable[int], given: Iterable[int]) -> int:
    """Return the bytes of what was `made` and is not what later forwards are `given`, which counts as inputs; sizes."""
    return sum((Counter(made) - Counter(given)).elements())
