"""What a loop makes before it calls the model: targets, sums that begin at zero, what a model holds that runs first.

    this step │ stood: 64 K, 4     │ went meanwhile        seen by weak references: these have lifetimes of their own
    step ends │ made: 64 K, 4, 8 M │ next step begins      seen on the tape, which goes on till then

What was made belongs to the kind of step that begins then. What has no like in what stood there stands in all of it. In
a loop's first step what stood and has no like in what was made is left from before the loop, and comes no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .._device import Event

NUMBER_BYTES = 512
"""What one number takes on a device, and less on a host. Those that a loop keeps of each step, losses for its log, are
not counted. They stay, and nothing of theirs goes as the next step begins."""


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
    return [size for key, size in alive.items() if key not in others and size > NUMBER_BYTES]


def alike(stood: Mapping[int, int], made: Iterable[int]) -> dict[int, int]:
    """Return those of what `stood`, sizes by storage, that have a like in what was `made`: one each."""
    left, found = Counter(made), dict[int, int]()
    for key, size in stood.items():
        if left[size] > 0:
            left[size] -= 1
            found[key] = size
    return found


def unlike_bytes(made: Iterable[int], stood: Iterable[int]) -> int:
    """Return the bytes of what was `made` and has no like in what `stood`; both are sizes."""
    return sum((Counter(made) - Counter(stood)).elements())
